// SPDX-License-Identifier: Apache-2.0
#include "engine/aio/aio_backend.hpp"

#include "support/backend_conformance.hpp"
#include "support/seccomp.hpp"

#include <gmock/gmock.h>

namespace penstock::engine {

namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Aio, BackendConformance,
                         testing::Values(BackendCase{"aio", make_aio_backend}), name_of);

std::string refusal_by(long system_call, int system_errno) {
    return test::in_child([=]() -> std::string {
        if (!test::refuse_system_call(system_call, system_errno)) {
            return "no seccomp";
        }
        const auto made = make_aio_backend(BackendOptions{});
        if (made) {
            return "a context was made";
        }
        return made.error().code == ErrorCode::kUnsupported
                   ? made.error().describe()
                   : "a wrong error: " + made.error().describe();
    });
}

TEST(AioBackend, RefusalNamesReasonAndCure) {
    EXPECT_THAT(refusal_by(SYS_io_setup, EAGAIN), HasSubstr("sysctl -w fs.aio-max-nr="));
    EXPECT_THAT(refusal_by(SYS_io_setup, ENOSYS), HasSubstr("CONFIG_AIO"));
    EXPECT_THAT(refusal_by(SYS_io_setup, EPERM), HasSubstr("seccomp"));
    EXPECT_THAT(refusal_by(SYS_io_submit, EINVAL), HasSubstr("IOCB_CMD_POLL"));
}

TEST(AioBackend, SaysWhatItIs) {
    const auto made = make_aio_backend(BackendOptions{8});
    ASSERT_TRUE(made) << made.error().describe();
    EXPECT_STREQ((*made)->name(), "libaio");
    EXPECT_FALSE((*made)->takes_buffered());
    EXPECT_THAT((*made)->detail(), HasSubstr("9 entries"));
}

class AioCalls : public BackendConformance {};

TEST_P(AioCalls, TwoSystemCallsABlockAtMost) {
    constexpr int kBlocks = 64;
    const TestMemory memory(1 << 16);
    const std::uint64_t before = backend_->system_calls();
    for (int i = 0; i < kBlocks; ++i) {
        set(one_, Op::kWrite, *file_, direct(), 0, {{memory.data(), memory.size()}});
        backend_->push(one_);
        backend_->enter(1, base::kForever);
        std::array<Request*, 2> done{};
        ASSERT_EQ(backend_->reap(done), 1U);
    }
    EXPECT_LE(backend_->system_calls() - before, 2U * kBlocks);
}

// In these two the kernel's queue is full whenever three requests are submitted at once.
TEST_P(AioCalls, FullKernelQueueIsNoResultWhileSomethingIsInIt) {
    if (!file_->geometry().direct) {
        GTEST_SKIP() << "needs direct I/O: a buffered request is done before io_submit returns";
    }
    const std::string got = test::in_child([this]() -> std::string {
        backend_->abandon_after_fork();
        backend_ = make(kDepth);
        const TestMemory memory(1 << 20);
        if (transfer(Op::kWrite, direct(), 0, memory.data(), memory.size()) != 1 << 20) {
            return "no file";
        }
        if (!test::refuse_system_call(SYS_io_submit, EAGAIN, 3)) {
            return "no seccomp";
        }
        int kept = 0;
        std::array<Request*, 8> done{};
        for (int round = 0; round < 100 && kept < 10; ++round) {
            std::array<Request, 5> requests;
            for (Request& request : requests) {
                set(request, Op::kRead, *file_, direct(), 0, {{memory.data(), memory.size()}});
            }
            backend_->push(requests[0]);
            backend_->enter(0, 0);
            for (std::size_t i = 1; i < 4; ++i) {
                backend_->push(requests[i]);
            }
            backend_->enter(0, 0);  // refused for now
            const std::size_t early = backend_->reap(done);
            backend_->push(requests[4]);
            if (early > 0) {  // the device was faster than we are: the refusal had to be a result
                if (wait_for(*backend_, 5 - early).size() != 5 - early) {
                    return "one was lost";
                }
                continue;
            }
            if (wait_for(*backend_, 5).size() != 5) {
                return "one was lost";
            }
            for (const Request& request : requests) {
                if (request.result != 1 << 20) {
                    return "a full queue became a result";
                }
            }
            ++kept;
        }
        return kept > 0 ? "kept" : "never kept";
    });
    EXPECT_EQ(got, "kept");
}

TEST_P(AioCalls, FullKernelQueueWithNothingInItIsAResult) {
    const std::string got = test::in_child([this]() -> std::string {
        backend_->abandon_after_fork();
        backend_ = make(kDepth);
        if (!test::refuse_system_call(SYS_io_submit, EAGAIN, 3)) {
            return "no seccomp";
        }
        const TestMemory memory(4096);
        std::array<Request, 3> requests;
        for (Request& request : requests) {
            set(request, Op::kWrite, *file_, direct(), 0, {{memory.data(), memory.size()}});
            backend_->push(request);
        }
        if (wait_for(*backend_, 3).size() != 3) {
            return "one was lost";
        }
        return requests[0].result == -EAGAIN && requests[1].result == 4096 &&
                       requests[2].result == 4096
                   ? "the first"
                   : "others";
    });
    EXPECT_EQ(got, "the first");
}

INSTANTIATE_TEST_SUITE_P(Aio, AioCalls, testing::Values(BackendCase{"aio", make_aio_backend}),
                         name_of);

}  // namespace

}  // namespace penstock::engine
