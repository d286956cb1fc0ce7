// SPDX-License-Identifier: Apache-2.0
// Transfers of GPU memory from their start to their end: cancel, close and fork with copies out,
// copies that fail, a driver that fails, streams, and memory that many channels share.
#include "suite/suite.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace penstock::suite {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::size_t kBytes = 4 << 20;
constexpr int kLaunchFailed = 719;

class DeviceLife : public EveryBackend {
protected:
    void SetUp() override {
        EveryBackend::SetUp();
        if (on_installed_driver()) {
            GTEST_SKIP() << "the controls are the fake driver's";
        }
        fake_driver().calm();
    }
    void TearDown() override {
        if (!on_installed_driver()) {
            fake_driver().calm();
        }
        EveryBackend::TearDown();
    }
    static TransferRequest request(bool write, const File& file, const DeviceBytes& memory,
                                   std::size_t bytes = kBytes) {
        TransferRequest made = request_of(write, file, memory.data(), bytes, 0);
        made.extents[0].memory.kind = MemoryKind::kDevice;
        made.extents[0].memory.device = memory.gpu();
        return made;
    }
};
INSTANTIATE_TEST_SUITE_P(Backends, DeviceLife, every_kind(), kind_name);

TEST_P(DeviceLife, WhatIsWrittenIsRead) {
    const auto data = pattern(kBytes, 1);
    const File file = open("file", true);
    const DeviceBytes from(0, data);
    EXPECT_EQ(engine().run(request(true, file, from))->wait(), kBytes);
    EXPECT_TRUE(get_bytes(file, 0, kBytes) == data);
    const DeviceBytes into(1, kBytes);
    EXPECT_EQ(engine().run(request(false, file, into))->wait(), kBytes);
    EXPECT_TRUE(into.look() == data);
}

// The copies that are out when it is cancelled are waited for, and nothing comes after them.
TEST_P(DeviceLife, CancelWaitsForTheCopiesThatAreOut) {
    const File file = with_bytes("file", pattern(kBytes, 1));
    const DeviceBytes into(0, kBytes);
    fake_driver().hold(true);
    const TransferPtr transfer = engine().submit(request(false, file, into));
    EXPECT_FALSE(transfer->wait_for(20ms));
    transfer->cancel();
    EXPECT_FALSE(transfer->done()) << "its copies are held";
    fake_driver().hold(false);
    const auto error = error_of([&] { return transfer->wait(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kCancelled);
    const auto then = into.look();
    std::this_thread::sleep_for(5ms);
    EXPECT_TRUE(into.look() == then) << "a copy came after the end";
}

TEST_P(DeviceLife, DrainWaitsForCopiesOfATransferThatWasDropped) {
    const auto data = pattern(kBytes, 3);
    const File file = with_bytes("file", data);
    const DeviceBytes into(0, kBytes);
    fake_driver().set_rate(200e6, 200e6);
    static_cast<void>(engine().submit(request(false, file, into)));
    EXPECT_TRUE(engine().drain());
    EXPECT_TRUE(into.look() == data);
}

// Every n-th copy fails: one error that says so, the engine works on with the host's memory.
TEST_P(DeviceLife, AFailedCopyEndsItsTransferAlone) {
    const auto data = pattern(kBytes, 1);
    const File file = with_bytes("file", data);
    const DeviceBytes into(0, kBytes);
    engine().run(request(false, file, into))->wait();  // the driver is at work
    for (const char* call : {"cuMemcpyHtoDAsync", "cuMemcpyBatchAsync", "cuEventRecord"}) {
        for (const std::uint64_t nth : {1U, 2U, 4U}) {
            fake_driver().fail(call, nth, kLaunchFailed);
            const auto error =
                error_of([&] { return engine().submit(request(false, file, into))->wait(); });
            fake_driver().fail(call, 0, 0);
            if (error) {
                EXPECT_THAT(error->what(), HasSubstr("719")) << call << " " << nth;
                EXPECT_FALSE(error->operation().empty());
            }
            std::vector<std::byte> host(kBytes);
            EXPECT_EQ(engine().read(file, host), kBytes);
            EXPECT_TRUE(host == data);
        }
    }
    const DeviceBytes again(0, kBytes);
    EXPECT_EQ(engine().run(request(false, file, again))->wait(), kBytes);
    EXPECT_TRUE(again.look() == data);
}

// Memory that cannot be pinned ends the transfer, and is asked for again by the next.
TEST_P(DeviceLife, MemoryThatCannotBePinnedIsAnErrorOfTheTransfer) {
    const auto data = pattern(kBytes, 1);
    const File file = with_bytes("file", data);
    const DeviceBytes into(0, kBytes);
    fake_driver().fail("cuMemHostRegister", 1, 2);
    const auto error =
        error_of([&] { return engine().submit(request(false, file, into))->wait(); });
    ASSERT_TRUE(error);
    fake_driver().calm();
    EXPECT_EQ(engine().submit(request(false, file, into))->wait(), kBytes);
    EXPECT_TRUE(into.look() == data);
}

TEST_P(DeviceLife, TheEndOfAFileIsFoundAsForTheHost) {
    const auto data = pattern(100'001, 1);
    const File file = with_bytes("file", data);
    Arena arena(300'000, 5, 0);
    const Memory memory = arena.take_memory(200'000);
    TransferRequest some = request_of(false, file, memory.data, memory.bytes, 0);
    some.extents[0].memory = memory;
    EXPECT_EQ(error_of([&] { return engine().submit(some)->wait(); })->reason(),
              ErrorCode::kEndOfFile);
    Arena fresh(300'000, 5, 0);
    some.extents[0].memory = fresh.take_memory(200'000);
    some.options.allow_short = true;
    const Memory into = some.extents[0].memory;
    EXPECT_EQ(engine().submit(some)->wait(), data.size());
    fresh.expect(fresh.host_of(into), data);
    EXPECT_EQ(fresh.check(), "");
}

// A fork waits for the copies that are out; the parent's transfer goes on, the child's has ended,
// and there the GPU is no more, but the host's memory moves.
TEST_P(DeviceLife, AForkWithCopiesOut) {
    if (fake()) {
        GTEST_SKIP() << "the fake file system is the parent's";
    }
    constexpr std::size_t kMany = 48 << 20;  // more than is at the device at once
    const auto data = pattern(kMany, 1);
    const File file = with_bytes("file", data);
    const DeviceBytes into(0, kMany);
    fake_driver().set_rate(400e6, 400e6);
    const TransferPtr transfer = engine().submit(request(false, file, into, kMany));
    std::this_thread::sleep_for(3ms);
    const pid_t child = ::fork();
    if (child == 0) {
        const auto ended = error_of([&] { return transfer->wait(); });
        const auto no_gpu =
            error_of([&] { return engine().submit(request(false, file, into))->wait(); });
        std::vector<std::byte> host(kMany);
        const bool reads = engine().read(file, host) == kMany && host == data;
        const bool good = ended && ended->reason() == ErrorCode::kCancelled && no_gpu && reads;
        ::_exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(transfer->wait(), kMany);
    EXPECT_TRUE(into.look() == data);
}

// Four channels each want slots for 16 MiB and more, and all of them have 40 MiB of pinned memory.
TEST_P(DeviceLife, ChannelsShareWhatIsPinned) {
    constexpr std::size_t kEach = 24 << 20;
    EngineOptions options;
    options.channels = 4;
    use(options);
    const auto data = pattern(kEach, 1);
    const File file = with_bytes("file", data);
    const DeviceBytes into(0, kEach);
    fake_driver().reset_counters();
    fake_driver().set_rate(2e9, 2e9);
    const std::uint64_t before = fake_driver().counters().pinned_bytes_now;  // of small copies
    std::vector<TransferPtr> all;
    for (int i = 0; i < 4; ++i) {
        all.push_back(engine().submit(request(false, file, into, kEach)));
    }
    for (const TransferPtr& transfer : all) {
        EXPECT_EQ(transfer->wait(), kEach);
    }
    EXPECT_TRUE(into.look() == data);
    const std::uint64_t pinned = fake_driver().counters().pinned_bytes_now - before;
    EXPECT_LE(pinned, 40U << 20);
    EXPECT_EQ(engine().stats().gpu_pinned_bytes, pinned);
    EXPECT_EQ(engine().stats().gpu_copied_bytes, 4 * kEach);
    EXPECT_EQ(engine().stats().copied_bytes, 0U);
}

}  // namespace
}  // namespace penstock::suite
