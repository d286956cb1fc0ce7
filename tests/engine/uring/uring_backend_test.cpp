// SPDX-License-Identifier: Apache-2.0
#include "engine/uring/uring_backend.hpp"

#include "os/machine/limits.hpp"
#include "support/backend_conformance.hpp"
#include "support/seccomp.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace penstock::engine {

namespace {

using testing::HasSubstr;
using testing::Not;

BackendCase on_rungs(std::string name, UringRungs rungs) {
    return {std::move(name),
            [rungs](const BackendOptions& options) { return make_uring_backend(options, rungs); }};
}

INSTANTIATE_TEST_SUITE_P(Uring, BackendConformance,
                         testing::Values(on_rungs("best", UringRungs::best()),
                                         on_rungs("linux_6_0", {false, true, true, true}),
                                         on_rungs("linux_5_19", {false, false, true, true}),
                                         on_rungs("linux_5_18", {false, false, false, true}),
                                         on_rungs("linux_5_15", UringRungs::linux_5_15())),
                         name_of);

std::string detail_on(UringRungs rungs) {
    const auto made = make_uring_backend(BackendOptions{8}, rungs);
    return made ? (*made)->detail() : made.error().describe();
}

std::string refusal_by(int system_errno) {
    return test::in_child([system_errno]() -> std::string {
        if (!test::refuse_system_call(SYS_io_uring_setup, system_errno)) {
            return "no seccomp";
        }
        const auto made = make_uring_backend(BackendOptions{});
        if (made) {
            return "a ring was made";
        }
        return made.error().system_errno == system_errno &&
                       made.error().code == ErrorCode::kUnsupported
                   ? made.error().describe()
                   : "a wrong error: " + made.error().describe();
    });
}

TEST(UringBackend, TellsItsFlags) {
    EXPECT_THAT(detail_on(UringRungs::linux_5_15()), HasSubstr("no optional flags"));
    const std::string coop = detail_on({false, false, true, true});
    if (os::release_at_least(os::kernel_release(), 5, 19)) {
        EXPECT_THAT(coop, HasSubstr("COOP_TASKRUN|TASKRUN_FLAG|SUBMIT_ALL"));
    }
    EXPECT_THAT(coop, Not(HasSubstr("SINGLE_ISSUER")));
    // DEFER_TASKRUN is not to be had without SINGLE_ISSUER.
    EXPECT_THAT(detail_on({true, false, true, true}), Not(HasSubstr("DEFER_TASKRUN")));
    EXPECT_THAT(detail_on(UringRungs::best()), HasSubstr("16 submission and 32 completion"));
}

TEST(UringBackend, RefusalNamesReasonAndCure) {
    EXPECT_THAT(refusal_by(EPERM), HasSubstr("seccomp"));
    EXPECT_THAT(refusal_by(ENOSYS), HasSubstr("ENOSYS"));
    EXPECT_THAT(refusal_by(ENOMEM), HasSubstr("ulimit -l"));
    // The whole ladder is refused.
    EXPECT_THAT(refusal_by(EINVAL), HasSubstr("EINVAL"));
}

TEST(UringBackend, NeedsNoLockedMemory) {
    // Kernels before 5.12 count the ring in RLIMIT_MEMLOCK of processes without CAP_IPC_LOCK.
    const std::string got = test::in_child([]() -> std::string {
        const rlimit none{0, 0};
        if (::setrlimit(RLIMIT_MEMLOCK, &none) != 0 ||
            (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0)) {
            return "cannot lower the limit";
        }
        const auto made = make_uring_backend(BackendOptions{});
        return made ? "made" : made.error().describe();
    });
    EXPECT_THAT(got, testing::AnyOf("made", HasSubstr("ulimit -l")));
}

TEST(UringBackend, RefusesADepthBeyondTheKernels) {
    const auto made = make_uring_backend(BackendOptions{1U << 20});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    const auto largest = make_uring_backend(BackendOptions{16384});
    EXPECT_TRUE(largest) << largest.error().describe();
}

class UringCalls : public BackendConformance {};

TEST_P(UringCalls, OneSystemCallABlock) {
    constexpr int kBlocks = 64;
    const TestMemory memory(1 << 16);
    std::uint64_t before = backend_->system_calls();
    for (int i = 0; i < kBlocks; ++i) {
        set(one_, Op::kWrite, *file_, direct(), 0, {{memory.data(), memory.size()}});
        backend_->push(one_);
        backend_->enter(1, base::kForever);
        std::array<Request*, 2> done{};
        ASSERT_EQ(backend_->reap(done), 1U);
    }
    // A signal of the kernel's own may end a sleep on the old rungs.
    EXPECT_LE(backend_->system_calls() - before, kBlocks + 2U);
    // Whatever is finished already costs none.
    std::vector<Request> requests(8);
    for (Request& request : requests) {
        set(request, Op::kRead, *file_, direct(), 0, {{memory.data(), memory.size()}});
        backend_->push(request);
    }
    before = backend_->system_calls();
    backend_->enter(8, base::kForever);
    std::array<Request*, 1> done{};
    for (int i = 0; i < 8; ++i) {
        backend_->enter(1, base::kForever);
        EXPECT_EQ(backend_->reap(done), 1U);
    }
    EXPECT_LE(backend_->system_calls() - before, 3U);
}

TEST_P(UringCalls, RefusedEnterBecomesTheResultOfWhatItCarried) {
    const std::string got = test::in_child([this]() -> std::string {
        backend_->abandon_after_fork();
        backend_ = make(kDepth);
        backend_->enter(1, kMillisecond);  // the wake-up is armed from here on
        if (!test::refuse_system_call(SYS_io_uring_enter, EBUSY, 2)) {
            return "no seccomp";
        }
        const TestMemory memory(8192);
        std::array<Request, 2> requests;
        for (Request& request : requests) {
            set(request, Op::kWrite, *file_, direct(), 0, {{memory.data(), 8192}});
            backend_->push(request);
        }
        backend_->enter(0, 0);  // two entries: refused
        std::array<Request*, 4> done{};
        if (backend_->reap(done) != 2 || requests[0].result != -EBUSY ||
            requests[1].result != -EBUSY) {
            return "not refused";
        }
        return transfer(Op::kWrite, direct(), 0, memory.data(), 8192) == 8192 ? "and goes on"
                                                                              : "stuck";
    });
    EXPECT_EQ(got, "and goes on");
}

// Not even the wake-up of a sleep can be asked for: a sleep without a limit must come back
// all the same, or would never see what is asked of it next.
TEST_P(UringCalls, WithEveryEnterRefusedNothingSleepsForEver) {
    const std::string got = test::in_child([this]() -> std::string {
        backend_->abandon_after_fork();
        backend_ = make(kDepth);
        if (!test::refuse_system_call(SYS_io_uring_enter, EPERM)) {
            return "no seccomp";
        }
        ::alarm(30);
        for (int i = 0; i < 3; ++i) {
            backend_->enter(1, base::kForever);
        }
        const TestMemory memory(8192);
        set(one_, Op::kWrite, *file_, direct(), 0, {{memory.data(), 8192}});
        backend_->push(one_);
        backend_->enter(1, base::kForever);
        std::array<Request*, 4> done{};
        return backend_->reap(done) == 1 && one_.result == -EPERM ? "told" : "lost";
    });
    EXPECT_EQ(got, "told");
}

// Requests that the kernel has write into their memory until they come back, so the end of the
// backend waits for them, also where every enter is refused: without keeping a core busy.
TEST_P(UringCalls, WithEveryEnterRefusedItsEndDoesNotSpinTimed) {
    const std::string got = test::in_child([this]() -> std::string {
        backend_->abandon_after_fork();
        const TestMemory memory(8192);
        std::atomic<bool> refused{false};
        std::thread ends([&] {
            auto backend = make(kDepth);  // one thread makes it, uses it and ends it
            set(one_, Op::kRead, *file_, direct(), 0, {{memory.data(), 8192}});
            backend->push(one_);
            backend->enter(0, 0);
            refused = test::refuse_system_call(SYS_io_uring_enter, EPERM);
        });
        ends.detach();
        while (!refused) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        rusage before{};
        rusage after{};
        ::getrusage(RUSAGE_SELF, &before);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        ::getrusage(RUSAGE_SELF, &after);
        const auto spent_us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1'000'000 +
                              after.ru_utime.tv_usec - before.ru_utime.tv_usec +
                              (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1'000'000 +
                              after.ru_stime.tv_usec - before.ru_stime.tv_usec;
        return spent_us < 150'000 ? "sleeps" : "spins";
    });
    EXPECT_EQ(got, "sleeps");
}

INSTANTIATE_TEST_SUITE_P(Uring, UringCalls,
                         testing::Values(on_rungs("best", UringRungs::best()),
                                         on_rungs("linux_5_15", UringRungs::linux_5_15())),
                         name_of);

}  // namespace

}  // namespace penstock::engine
