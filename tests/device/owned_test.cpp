// SPDX-License-Identifier: Apache-2.0
// The owners of what the driver makes: all of it ends, whichever call is refused; nothing of a
// context that was reset is ended in the next one; and the words of a refusal.
#include "device/cuda/owned.hpp"

#include "device/fake_gpu.hpp"

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::device {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class Owners : public OnFakeGpu {
protected:
    [[nodiscard]] std::array<std::uint64_t, 4> alive() const {
        const FakeGpuCounters now = fake_->counters();
        return {now.streams_now, now.events_now, now.pinned_bytes_now, now.device_bytes_now};
    }
};

std::optional<Error> error_of(const std::function<void()>& call) {
    try {
        call();
        return std::nullopt;
    } catch (const Error& error) {
        return error;
    }
}

// Objects that a program makes of the public classes, with a copy through all of them.
void use_all() {
    Region pinned = Region::pinned(3 << 20, 0);
    Region on_gpu = Region::gpu(3 << 20, 0);
    std::vector<std::byte> block(1 << 20);
    const PinnedMemory more(block, 0);
    GpuStream stream(0);
    GpuStream other(0);
    std::memset(pinned.data(), 7, pinned.size());
    stream.copy_in(on_gpu.data(), pinned.data(), pinned.size());
    stream.hold_up(other.handle());
    other.wait_for(stream.handle());
    const std::array back{MemoryCopy{std::span(block), on_gpu.memory(1 << 20, 1 << 20)}};
    other.copy(back);
    const bool idle = other.wait_until_idle(seconds(20));
    if (!idle || block.front() != std::byte{7} || block.back() != std::byte{7}) {
        throw Error(ErrorCode::kSystem, 0, "test", "", kNoOffset, "the copy came to nothing");
    }
}

TEST_F(Owners, EndWhatTheyMade) {
    const auto before = alive();
    use_all();
    EXPECT_EQ(alive(), before);
}

// Each call in turn, once: an error or nothing, and nothing is left behind.
TEST_F(Owners, EndWhatTheyMadeWhicheverCallIsRefused) {
    const auto before = alive();
    bool refused = true;
    int errors = 0;
    std::uint64_t nth = 1;
    for (; refused; ++nth) {
        ASSERT_LT(nth, 500U);
        const std::uint64_t failed = fake_->counters().failed_by_order;
        fake_->fail("*", nth, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        errors += error_of(use_all).has_value() ? 1 : 0;
        refused = fake_->counters().failed_by_order != failed;
        fake_->calm();
        ASSERT_EQ(alive(), before) << "call " << nth;
    }
    EXPECT_GT(errors, 15);
    EXPECT_GT(nth, 40U);
}

TEST_F(Owners, ThreeRefusalsInARowOfTheContextLeaveNothing) {
    const auto before = alive();
    for (const char* const call : {"cuCtxPushCurrent", "cuMemHostUnregister"}) {
        std::optional<Region> pinned = Region::pinned(4096, 0);
        std::optional<Region> on_gpu = Region::gpu(4096, 0);
        fake_->fail(call, 1, cuda::CUDA_ERROR_INVALID_VALUE, 3);
        on_gpu.reset();
        fake_->fail(call, 1, cuda::CUDA_ERROR_INVALID_VALUE, 3);
        pinned.reset();
        fake_->calm();
        EXPECT_EQ(alive(), before) << call;
    }
}

// The next context may have given the same addresses to others.
TEST_F(Owners, EndNothingInTheContextThatCameAfterAReset) {
    auto* const reset = other_call<cuda::CUresult(cuda::CUdevice)>("cuDevicePrimaryCtxReset_v2");
    ASSERT_NE(reset, nullptr);
    std::optional<Region> on_gpu = Region::gpu(1 << 20, 0);
    std::optional<Region> pinned = Region::pinned(1 << 20, 0);
    std::optional<GpuStream> stream(0);
    ASSERT_EQ(reset(0), cuda::CUDA_SUCCESS);
    const Region next = Region::gpu(1 << 20, 0);
    const auto before = alive();
    std::array<std::uint64_t, 3> ends{};
    const auto count = [&] {
        return std::array{fake_->calls("cuMemFree"), fake_->calls("cuMemHostUnregister"),
                          fake_->calls("cuStreamDestroy")};
    };
    ends = count();
    on_gpu.reset();
    pinned.reset();
    stream.reset();
    EXPECT_EQ(count(), ends);
    EXPECT_EQ(alive(), before);
    memory_.clear();  // the reset took it
}

TEST_F(Owners, LeaveAllAloneInAChild) {
    std::optional<Region> on_gpu = Region::gpu(4096, 0);
    std::optional<Region> pinned = Region::pinned(4096, 0);
    std::optional<GpuStream> stream(0);
    std::optional<RowCopies> rows;
    rows.emplace(0, 4);
    const auto before = alive();
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        const auto count = [&] {
            std::uint64_t calls = 0;
            for (const char* const call : {"cuCtxPushCurrent", "cuMemFree", "cuMemHostUnregister",
                                           "cuStreamDestroy", "cuEventDestroy", "cuStreamQuery"}) {
                calls += fake_->calls(call);
            }
            return calls;
        };
        const std::uint64_t calls = count();
        const bool refuses = !stream->wait_until_idle(seconds(1)) &&
                             error_of([] { static_cast<void>(Region::gpu(1, 0)); }).has_value();
        rows.reset();
        stream.reset();
        pinned.reset();
        on_gpu.reset();
        ::_exit(refuses && count() == calls ? 0 : 1);
    }
    int status = 1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(alive(), before);
}

TEST_F(Owners, AFullGpuSaysHowMuchIsFree) {
    const std::uint64_t unused = free_gpu_memory(0);
    const Region half = Region::gpu(unused / 2, 0);
    EXPECT_LE(free_gpu_memory(0), unused - unused / 2);
    const auto error = error_of([&] { static_cast<void>(Region::gpu(unused, 0)); });
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->reason(), ErrorCode::kOutOfMemory);
    for (const char* const word : {"memory of GPU 0", "cuMemAlloc", "ask for less", "are free"}) {
        EXPECT_THAT(error->what(), HasSubstr(word));
    }
    fake_->fail("cuMemGetInfo", 1, cuda::CUDA_ERROR_UNKNOWN);
    const auto unknown = error_of([] { static_cast<void>(free_gpu_memory(0)); });
    ASSERT_TRUE(unknown.has_value());
    EXPECT_THAT(unknown->what(), HasSubstr("cuMemGetInfo"));
    EXPECT_EQ(error_of([] { static_cast<void>(free_gpu_memory(9)); })->reason(),
              ErrorCode::kInvalidArgument);
}

// One text for all that ask.
TEST_F(Owners, MemoryThatCannotBePinnedNamesTheLimit) {
    std::vector<std::byte> block(4096);
    const std::array<std::function<void()>, 3> tries{
        [] { static_cast<void>(Region::pinned(4096, 0)); },
        [&] { const PinnedMemory pinned(block, 0); },
        [] { const RowCopies copies(0, 170); },
    };
    for (const auto& one : tries) {
        fake_->fail("cuMemHostRegister", 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        const auto error = error_of(one);
        ASSERT_TRUE(error.has_value());
        EXPECT_EQ(error->reason(), ErrorCode::kOutOfMemory);
        for (const char* const word : {" of host memory could not be pinned for GPU 0",
                                       "cuMemHostRegister", "RLIMIT_MEMLOCK", "ulimit -l"}) {
            EXPECT_THAT(error->what(), HasSubstr(word));
        }
    }
    const PinnedMemory first(block, 0);
    const auto twice = error_of([&] { const PinnedMemory second(block, 0); });
    ASSERT_TRUE(twice.has_value());
    EXPECT_EQ(twice->reason(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(twice->what(), HasSubstr("pinned already"));
}

TEST_F(Owners, PinnedMemoryHasAnAddressForGpus) {
    const Region block = Region::host(1 << 16);
    PinnedMemory pinned({block.data(), block.size()}, 0);
    EXPECT_EQ(pinned.gpu_address(), reinterpret_cast<std::uintptr_t>(block.data()));
    const PinnedMemory moved = std::move(pinned);
    EXPECT_EQ(moved.size(), block.size());
    EXPECT_EQ(pinned.size(), 0U);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(pinned.gpu_address(), 0U);
    EXPECT_EQ(PinnedMemory({}, 0).gpu_address(), 0U);
}

// Another library unmapped pieces that it had registered, and the same addresses are new here.
TEST_F(Owners, PinAddressesThatWereLeftRegistered) {
    constexpr std::size_t kPiece = 64 << 10;
    const Region block = Region::host(4 * kPiece);
    const std::span<std::byte> bytes(block.data(), block.size());
    ASSERT_EQ(driver_->cuCtxPushCurrent(primary_context(*driver_, 0).value()), cuda::CUDA_SUCCESS);
    for (const std::size_t at : {kPiece, 2 * kPiece}) {
        ASSERT_EQ(driver_->cuMemHostRegister(block.data() + at, kPiece, 0), cuda::CUDA_SUCCESS);
    }
    EXPECT_TRUE(error_of([&] { const PinnedMemory pinned(bytes, 0); }).has_value());
    EXPECT_FALSE(error_of([&] { const PinnedMemory pinned(bytes, 0, true); }).has_value());
    EXPECT_EQ(driver_->cuMemHostUnregister(block.data()),
              cuda::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    cuda::CUcontext popped = nullptr;
    driver_->cuCtxPopCurrent(&popped);
}

TEST_F(Owners, MoveWithTheirObjects) {
    const auto before = alive();
    {
        Region one = Region::gpu(4096, 0);
        Region two = Region::pinned(4096, 0);
        const std::byte* const there = one.data();
        one = std::move(two);
        EXPECT_NE(one.data(), there);
        EXPECT_EQ(one.kind(), MemoryKind::kHost);
        EXPECT_EQ(one.device(), 0);
        EXPECT_NE(one.gpu_address(), 0U);
        EXPECT_EQ(two.data(), nullptr);  // NOLINT(bugprone-use-after-move)
        EXPECT_EQ(two.size(), 0U);
        GpuStream first(0);
        GpuStream second(0);
        const StreamHandle handle = second.handle();
        first = std::move(second);
        EXPECT_EQ(first.handle(), handle);
        EXPECT_TRUE(second.wait_until_idle(seconds(1)));  // NOLINT(bugprone-use-after-move)
        RowCopies rows(0, 4);
        const RowCopies others = std::move(rows);
        EXPECT_EQ(others.room(), 4U);
        EXPECT_EQ(rows.room(), 0U);  // NOLINT(bugprone-use-after-move)
    }
    EXPECT_EQ(alive(), before);
}

TEST_F(Owners, EmptyOnesRefuseTheirCalls) {
    GpuStream stream;
    RowCopies rows;
    const std::array<std::function<void()>, 7> calls{
        [&] { static_cast<void>(stream.handle()); },
        [&] { stream.copy_in(nullptr, nullptr, 1); },
        [&] { stream.copy({}); },
        [&] { stream.wait_for({}); },
        [&] { stream.hold_up({}); },
        [&] { rows.add(0, 0, 1); },
        [&] { rows.start({}); },
    };
    for (const auto& call : calls) {
        const auto error = error_of(call);
        ASSERT_TRUE(error.has_value());
        EXPECT_EQ(error->reason(), ErrorCode::kInvalidArgument) << error->what();
    }
    EXPECT_EQ(rows.state(), RowCopies::State::kDone);
    EXPECT_EQ(rows.error(), nullptr);
    EXPECT_EQ(error_of([] { static_cast<void>(Region::gpu(0, 9)); })->reason(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(Region::gpu(0, 0).size(), 0U);
}

TEST_F(Owners, AWaitMayHaveAnyLimit) {
    const Region pinned = Region::pinned(1 << 20, 0);
    const Region on_gpu = Region::gpu(1 << 20, 0);
    GpuStream stream(0);
    for (const bool ends : {false, true}) {
        fake_->hold(true);
        stream.copy_in(on_gpu.data(), pinned.data(), pinned.size());
        std::thread later([this] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            fake_->hold(false);
        });
        EXPECT_EQ(stream.wait_until_idle(ends ? std::chrono::nanoseconds::max()
                                              : std::chrono::nanoseconds::min()),
                  ends);
        later.join();
        EXPECT_TRUE(stream.wait_until_idle(seconds(20)));
    }
}

TEST_F(Owners, CopiesOnAStreamAreOfItsGpu) {
    GpuStream stream(0);
    const Region on_gpu = Region::gpu(4096, 0);
    const Region host = Region::pinned(4096, 0);
    const Memory all = on_gpu.memory(0, 4096);
    for (const MemoryCopy& wrong :
         {MemoryCopy{all, all}, MemoryCopy{host.memory(0, 4096), host.memory(0, 4096)},
          MemoryCopy{all, host.memory(0, 100)},
          MemoryCopy{{all.data, 4096, MemoryKind::kDevice, 1}, host.memory(0, 4096)}}) {
        const auto error = error_of([&] { stream.copy({&wrong, 1}); });
        ASSERT_TRUE(error.has_value());
        EXPECT_EQ(error->reason(), ErrorCode::kInvalidArgument);
    }
    EXPECT_TRUE(stream.wait_until_idle(seconds(1)));
}

// A stream that is not done when it ends does it still.
TEST_F(Owners, AStreamThatEndsLeavesItsWork) {
    const Region on_gpu = Region::gpu(4096, 0);
    Region host = Region::pinned(4096, 0);
    std::memset(host.data(), 5, host.size());
    fake_->hold(true);
    {
        GpuStream stream(0);
        stream.copy_in(on_gpu.data(), host.data(), 4096);
        EXPECT_FALSE(stream.wait_until_idle(std::chrono::milliseconds(2)));
    }
    const std::uint64_t before = fake_->counters().bytes_in;
    fake_->hold(false);
    const auto end = std::chrono::steady_clock::now() + seconds(20);
    while (fake_->counters().bytes_in == before && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // it counts what is done
    }
    std::vector<std::byte> seen(4096);
    ASSERT_TRUE(fake_->look(on_gpu.gpu_address(), seen.data(), seen.size()));
    EXPECT_EQ(seen, std::vector<std::byte>(4096, std::byte{5}));
}

TEST_F(Owners, MemoryThatIsGivenUpStays) {
    Region host = Region::pinned(4096, 0);
    Region on_gpu = Region::gpu(4096, 0);
    std::byte* const there = host.data();
    const auto before = alive();
    host.leave();
    on_gpu.leave();
    EXPECT_EQ(host.data(), nullptr);
    EXPECT_EQ(on_gpu.size(), 0U);
    EXPECT_EQ(alive(), before);
    there[4095] = std::byte{1};  // mapped still
    Region().leave();
}

}  // namespace
}  // namespace penstock::device
