// SPDX-License-Identifier: Apache-2.0
// Memory that the kernel holds: the right bytes whatever is registered, refused, freed and mapped
// again.
#include "engine/uring/uring_backend.hpp"
#include "memory/block.hpp"
#include "os/local_file_system.hpp"
#include "support/seccomp.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::engine {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kFilePages = 64;
constexpr base::Nanos kWait = 1'000'000'000;
constexpr int kMakeTable = 15;  // IORING_REGISTER_BUFFERS2
constexpr int kUpdate = 16;     // IORING_REGISTER_BUFFERS_UPDATE

std::byte byte_of(std::uint64_t page) {
    return static_cast<std::byte>(page * 7 + 1);
}

// A file whose pages each hold one byte, its own.
class Scene {
public:
    explicit Scene(UringRungs rungs) {
        std::string pattern = testing::TempDir() + "penstock-registered-XXXXXX";
        fd_ = ::mkstemp(pattern.data());
        EXPECT_GE(fd_, 0);
        for (std::uint64_t page = 0; page < kFilePages; ++page) {
            const std::vector<std::byte> bytes(kPage, byte_of(page));
            EXPECT_EQ(::pwrite(fd_, bytes.data(), kPage, static_cast<off_t>(page * kPage)),
                      static_cast<ssize_t>(kPage));
        }
        auto opened = os::local_file_system()->open(pattern, {.access = Access::kReadWrite});
        EXPECT_TRUE(opened) << opened.error().describe();
        file_ = *opened;
        ::unlink(pattern.c_str());
        auto made = make_uring_backend({.depth = 8}, rungs);
        EXPECT_TRUE(made) << made.error().describe();
        backend_ = std::move(*made);
    }
    Scene(const Scene&) = delete;
    Scene& operator=(const Scene&) = delete;
    ~Scene() { ::close(fd_); }

    // Page `page` of the file to or from the memory, and what the kernel said.
    std::int64_t move(Op op, std::uint64_t page, std::byte* memory) {
        Request request;
        request.op = op;
        request.file = file_.get();
        request.io = file_->geometry().direct ? os::IoPath::kDirect : os::IoPath::kBuffered;
        request.offset = page * kPage;
        request.memory[0] = {memory, kPage};
        request.pieces = {request.memory.data(), 1};
        backend_->push(request);
        std::array<Request*, 1> done{};
        while (backend_->reap(done) == 0) {
            backend_->enter(1, kWait);
        }
        return request.result;
    }
    // Reads, and says whether the bytes are those of the page.
    bool reads(std::uint64_t page, std::byte* memory) {
        std::memset(memory, 0xEE, kPage);
        return move(Op::kRead, page, memory) == static_cast<std::int64_t>(kPage) &&
               std::all_of(memory, memory + kPage,
                           [&](std::byte byte) { return byte == byte_of(page); });
    }
    // Until it is registered, or has been used often enough to be.
    bool uses(const memory::Block& block) {
        const std::uint64_t pages = block.size() / kPage;
        for (std::uint64_t i = 0; i < 2 * pages + 64; ++i) {
            if (!reads(i % kFilePages, block.data() + i % pages * kPage)) {
                return false;
            }
        }
        return true;
    }
    [[nodiscard]] RegisteredMemoryStatus status() const { return backend_->registered_memory(); }
    [[nodiscard]] Backend& backend() { return *backend_; }

private:
    int fd_ = -1;
    std::shared_ptr<os::File> file_;
    std::unique_ptr<Backend> backend_;
};

memory::Block block_of(std::uint64_t bytes, bool lasting = true) {
    auto block = memory::Block::make(bytes, {.lasting = lasting});
    EXPECT_TRUE(block) << block.error().describe();
    return std::move(*block);
}

class RegisteredMemoryTest : public testing::TestWithParam<UringRungs> {};

TEST_P(RegisteredMemoryTest, WhatIsUsedAgainAndAgainIsRegistered) {
    Scene scene(GetParam());
    const memory::Block block = block_of(256 << 10);
    ASSERT_TRUE(scene.reads(0, block.data()));
    EXPECT_EQ(scene.status().bytes, 0U);
    ASSERT_TRUE(scene.uses(block));
    if (scene.status().refused != 0) {
        GTEST_SKIP() << "the kernel registers no memory here: errno " << scene.status().refused;
    }
    EXPECT_EQ(scene.status().bytes, block.size());
    const std::uint64_t before = scene.status().requests;
    EXPECT_TRUE(scene.uses(block));
    EXPECT_EQ(scene.status().requests - before, 2 * block.size() / kPage + 64);
}

TEST_P(RegisteredMemoryTest, OtherMemoryIsNot) {
    Scene scene(GetParam());
    const memory::Block passing = block_of(64 << 10, false);
    const memory::Block large = block_of(RegisteredMemory::kBlockBytesMax + 1);
    EXPECT_TRUE(scene.uses(passing));
    for (int i = 0; i < 1000; ++i) {
        ASSERT_TRUE(scene.reads(0, large.data()));
    }
    EXPECT_EQ(scene.status().bytes, 0U);
    EXPECT_EQ(scene.status().requests, 0U);
}

// The pages of the first block are the kernel's still when the second one comes to lie there.
TEST_P(RegisteredMemoryTest, MemoryThatIsMappedWhereOtherWasIsItself) {
    Scene scene(GetParam());
    int met_again = 0;
    for (int i = 0; i < 20; ++i) {
        const std::byte* before = nullptr;
        {
            const memory::Block block = block_of(64 << 10);
            ASSERT_TRUE(scene.uses(block));
            before = block.data();
        }
        const memory::Block next = block_of(64 << 10);
        met_again += next.data() == before ? 1 : 0;
        ASSERT_TRUE(scene.reads(5, next.data()));
        EXPECT_EQ(scene.status().bytes, 0U);
    }
    EXPECT_GT(met_again, 0);
}

TEST_P(RegisteredMemoryTest, ARingThatSleepsLetsGoOfWhatGoes) {
    Scene scene(GetParam());
    std::optional<memory::Block> block = block_of(64 << 10);
    ASSERT_TRUE(scene.uses(*block));
    std::thread frees([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        block.reset();
    });
    if (scene.status().bytes != 0) {
        scene.backend().enter(1, 20 * kWait);  // the removal ends the sleep
    }
    frees.join();
    scene.backend().enter(0, 0);
    EXPECT_EQ(scene.status().bytes, 0U);
}

// More blocks than numbers, of any size, that come and go: a model of the file says what is right.
TEST_P(RegisteredMemoryTest, BytesAreRightWhateverComesAndGoes) {
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        Scene scene(GetParam());
        std::vector<std::byte> model(kFilePages);
        for (std::uint64_t page = 0; page < kFilePages; ++page) {
            model[page] = byte_of(page);
        }
        std::vector<memory::Block> blocks;
        for (int step = 0; step < 1500; ++step) {
            if (blocks.empty() || (blocks.size() < 90 && random() % 8 == 0)) {
                blocks.push_back(block_of(kPage * (1 + random() % 4), random() % 8 != 0));
            } else if (random() % 16 == 0) {
                std::swap(blocks[random() % blocks.size()], blocks.back());
                blocks.pop_back();
                continue;
            }
            const memory::Block& block =
                blocks[random() % std::min<std::size_t>(blocks.size(), 80)];
            std::byte* const memory = block.data() + random() % (block.size() / kPage) * kPage;
            const std::uint64_t page = random() % kFilePages;
            if (random() % 4 == 0) {
                model[page] = static_cast<std::byte>(random());
                std::memset(memory, static_cast<int>(model[page]), kPage);
                ASSERT_EQ(scene.move(Op::kWrite, page, memory), static_cast<std::int64_t>(kPage));
                std::memset(memory, 0, kPage);
            } else {
                ASSERT_EQ(scene.move(Op::kRead, page, memory), static_cast<std::int64_t>(kPage));
                ASSERT_TRUE(std::all_of(memory, memory + kPage,
                                        [&](std::byte byte) { return byte == model[page]; }))
                    << "step " << step;
            }
        }
    }
}

// The child's copy is the child's: what the kernel holds stays the parent's.
TEST_P(RegisteredMemoryTest, AForkLeavesTheParentItsPages) {
    Scene scene(GetParam());
    const memory::Block block = block_of(64 << 10);
    ASSERT_TRUE(scene.uses(block));
    const std::string child = test::in_child([&]() -> std::string {
        scene.backend().abandon_after_fork();
        std::memset(block.data(), 0x11, block.size());
        return "done";
    });
    ASSERT_EQ(child, "done");
    for (std::uint64_t page = 0; page < block.size() / kPage; ++page) {
        std::byte* const memory = block.data() + page * kPage;
        std::memset(memory, static_cast<int>(byte_of(page + 1)), kPage);
        ASSERT_EQ(scene.move(Op::kWrite, page + 1, memory), static_cast<std::int64_t>(kPage));
        EXPECT_TRUE(scene.reads(page + 1, memory));
    }
}

// At each call that the kernel may refuse, requests go on without.
TEST_P(RegisteredMemoryTest, ARefusalIsReportedAndCostsNothingElse) {
    for (const int call : {kMakeTable, kUpdate}) {
        for (const int error : {ENOMEM, EINVAL, EPERM, EFAULT}) {
            const std::string got = test::in_child([&]() -> std::string {
                Scene scene(GetParam());
                const memory::Block block = block_of(64 << 10);
                if (!test::refuse_system_call(SYS_io_uring_register, error, call)) {
                    return "no seccomp";
                }
                const bool right = scene.uses(block) && scene.uses(block);
                const RegisteredMemoryStatus status = scene.status();
                return right && status.bytes == 0 && status.requests == 0 && status.refused == error
                           ? "goes on"
                           : "wrong";
            });
            EXPECT_EQ(got, "goes on") << "call " << call << ", errno " << error;
        }
    }
}

// Then its number is never used again, and new memory in its place is read as it should be.
TEST_P(RegisteredMemoryTest, MemoryThatTheKernelDoesNotGiveBackIsNotMetAgain) {
    const std::string got = test::in_child([]() -> std::string {
        Scene scene(GetParam());
        std::optional<memory::Block> block = block_of(64 << 10);
        if (!scene.uses(*block)) {
            return "wrong at first";
        }
        if (scene.status().bytes == 0 ||
            !test::refuse_system_call(SYS_io_uring_register, ENOMEM, kUpdate)) {
            return "goes on";  // nothing to see here
        }
        for (int i = 0; i < 4; ++i) {
            block.reset();
            block = block_of(64 << 10);
            if (!scene.uses(*block)) {
                return "wrong";
            }
        }
        return scene.status().bytes == 0 && scene.status().refused == ENOMEM ? "goes on" : "held";
    });
    EXPECT_EQ(got, "goes on");
}

TEST_P(RegisteredMemoryTest, BeyondTheLimitOnLockedMemoryItIsLeft) {
    const std::string got = test::in_child([]() -> std::string {
        // Locked memory counts for the user: nobody else is this one.
        const auto user = static_cast<uid_t>(20'000 + ::getpid() % 40'000);
        const rlimit little{64 << 10, 64 << 10};
        if (::setrlimit(RLIMIT_MEMLOCK, &little) != 0 ||
            (::geteuid() == 0 && ::setresuid(user, user, user) != 0)) {
            return "cannot lower the limit";
        }
        Scene scene(GetParam());
        const memory::Block block = block_of(1 << 20);
        const bool right = scene.uses(block);
        return right && scene.status().bytes == 0 && scene.status().refused != 0 ? "left" : "wrong";
    });
    EXPECT_EQ(got, "left");
}

INSTANTIATE_TEST_SUITE_P(Uring, RegisteredMemoryTest,
                         testing::Values(UringRungs::best(), UringRungs::linux_5_15()),
                         [](const testing::TestParamInfo<UringRungs>& rungs) {
                             return rungs.param.submit_all ? "best" : "linux_5_15";
                         });

}  // namespace
}  // namespace penstock::engine
