// SPDX-License-Identifier: Apache-2.0
// The life of a transfer: waiting, cancelling, dropping, limits, classes, many threads, the end of
// an engine.
#include "suite/suite.hpp"
#include "support/same_bytes.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

namespace penstock::suite {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// 2 ms a request, two at once: a fake transfer of n blocks takes n ms.
FakeSetup slow(base::Nanos request_ns = 2'000'000) {
    FakeSetup setup;
    setup.model.request_ns = request_ns;
    setup.model.lanes = 2;
    return setup;
}

EngineOptions small_blocks() {
    EngineOptions options;
    options.block_bytes = 65536;
    options.queue_depth = 2;
    return options;
}

class Life : public EveryBackend {
protected:
    // Reads by handle or by path, straight or through slots.
    [[nodiscard]] TransferRequest reading(const File& file, std::span<std::byte> into, int kind) {
        TransferRequest request = kind % 2 == 0
                                      ? request_of(false, file, into.data(), into.size(), 0)
                                      : request_of(false, file.path(), into.data(), into.size(), 0);
        request.extents[0].offset = kind % 4 < 2 ? 0 : 1;
        return request;
    }
};
INSTANTIATE_TEST_SUITE_P(Backends, Life, every_kind(), kind_name);

// Tests that need a disk of known slowness, or one whose power can be cut.
class SlowDisk : public Life {};
INSTANTIATE_TEST_SUITE_P(Backends, SlowDisk, ::testing::Values(EngineKind::kFake), kind_name);

TEST_P(Life, WaitForLeavesItRunning) {
    use(small_blocks(), slow(10'000'000));  // 320 ms
    const auto data = pattern(4 << 20, 1);
    const File file = with_bytes("file", data);
    std::vector<std::byte> into(data.size());
    const TransferPtr transfer =
        engine().submit(request_of(false, file, into.data(), into.size(), 0));
    const auto early = transfer->wait_for(1us);
    if (fake()) {
        EXPECT_FALSE(early);
        EXPECT_EQ(transfer->status(), TransferStatus::kRunning);
        EXPECT_FALSE(transfer->done());
        EXPECT_EQ(engine().stats().running, 1U);
        EXPECT_FALSE(engine().drain(1ms));
    }
    EXPECT_EQ(transfer->wait_for(60s).value_or(0), data.size());
    EXPECT_EQ(transfer->status(), TransferStatus::kDone);
    EXPECT_EQ(transfer->wait(), data.size());  // again, and again the same
    EXPECT_EQ(transfer->wait_for(0ns).value_or(0), data.size());
    EXPECT_TRUE(into == data);
}

TEST_P(Life, NotifyAddsOneToAnEventfd) {
    const auto data = pattern(300'000, 1);
    const File file = with_bytes("file", data);
    std::vector<std::byte> into(data.size());
    const int fd = ::eventfd(0, EFD_CLOEXEC);
    const TransferPtr transfer =
        engine().submit(request_of(false, file, into.data(), into.size(), 0));
    transfer->notify(fd);
    pollfd waiting{fd, POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 60'000), 1);
    EXPECT_TRUE(transfer->done());
    transfer->notify(fd);  // over: at once
    std::uint64_t count = 0;
    ASSERT_EQ(::read(fd, &count, sizeof count), 8);
    EXPECT_EQ(count, 2U);
    ::close(fd);
    EXPECT_EQ(transfer->wait(), data.size());
}

// In every state that it may be in, from before its files are open to after its end.
TEST_P(Life, CancelInEveryState) {
    use(small_blocks(), slow(200'000));
    const auto data = pattern(2 << 20, 1);
    const File file = with_bytes("file", data);
    Arena arena(3 << 20);
    const auto into = arena.take(data.size() - 1);
    std::mt19937_64 random(1);
    int cancelled = 0;
    for (int round = 0; round < 24; ++round) {
        const TransferPtr transfer = engine().submit(reading(file, into, round));
        if (round >= 4) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
        }
        transfer->cancel();
        const auto error = error_of([&] { return transfer->wait(); });
        if (error) {
            ++cancelled;
            ASSERT_EQ(error->reason(), ErrorCode::kCancelled) << error->what();
            EXPECT_EQ(error->path(), path("file"));
            EXPECT_EQ(transfer->status(), TransferStatus::kCancelled);
        } else {
            EXPECT_EQ(transfer->status(), TransferStatus::kDone);
            EXPECT_TRUE(support::same_bytes(
                into, std::span(data).subspan(round % 4 < 2 ? 0 : 1, into.size())));
        }
        // It has ended, so its memory is quiet.
        std::fill(into.begin(), into.end(), std::byte{0xee});
        arena.forget(into);
        if (round % 8 == 0) {
            std::this_thread::sleep_for(2ms);
        }
        ASSERT_EQ(arena.check(), "");
        transfer->cancel();  // nothing to it any more
        EXPECT_EQ(error_of([&] { return transfer->wait(); }).has_value(), error.has_value());
    }
    EXPECT_GE(cancelled, fake() ? 1 : 0);
    EXPECT_TRUE(engine().drain());
    EXPECT_EQ(engine().read(file, into, 0), into.size());  // it works on
    EXPECT_TRUE(std::equal(into.begin(), into.end(), data.begin()));
}

TEST_P(SlowDisk, CancelDoesNotWaitForWhatIsQueuedTimed) {
    use(small_blocks(), slow(20'000'000));
    const File file = with_bytes("file", pattern(16 << 20, 1));  // 256 requests, 2.5 s
    std::vector<std::byte> into(16 << 20);
    const auto begin = Clock::now();
    const TransferPtr transfer =
        engine().submit(request_of(false, file, into.data(), into.size(), 0));
    std::this_thread::sleep_for(8ms);
    transfer->cancel();
    EXPECT_EQ(error_of([&] { return transfer->wait(); })->reason(), ErrorCode::kCancelled);
    EXPECT_LT(Clock::now() - begin, 1500ms);
}

TEST_P(Life, CancelledWriteLeavesTheRestOfTheFile) {
    use(small_blocks(), slow(200'000));
    const auto old = pattern(3 << 20, 1);
    const File file = with_bytes("file", old);
    const auto fresh = pattern(1 << 20, 2);
    for (int round = 0; round < 6; ++round) {
        const TransferPtr transfer =
            engine().submit(request_of(true, file, fresh.data(), fresh.size(), 1'000'001));
        std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
        transfer->cancel();
        static_cast<void>(error_of([&] { return transfer->wait(); }));
    }
    const auto now = get_bytes(file, 0, 4 << 20);
    ASSERT_EQ(now.size(), old.size());
    EXPECT_TRUE(std::equal(now.begin(), now.begin() + 1'000'001, old.begin()));
    const std::ptrdiff_t end = 1'000'001 + (1 << 20);
    EXPECT_TRUE(std::equal(now.begin() + end, now.end(), old.begin() + end));
}

TEST_P(Life, ErrorOfADroppedTransferIsRaisedOnce) {
    const File file = with_bytes("file", pattern(1000, 1));
    std::vector<std::byte> into(4096);
    std::vector<std::byte> dropped(3 * 4096);
    for (std::size_t i = 0; i < 3; ++i) {
        engine().submit(request_of(false, file, dropped.data() + i * 4096, 4096, 0)).reset();
    }
    const auto error = error_of([&] { return engine().drain(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kEndOfFile);
    EXPECT_TRUE(engine().drain());
    // An error that was looked at is not reported again, and neither is a cancellation.
    TransferPtr transfer = engine().submit(request_of(false, file, into.data(), into.size(), 0));
    EXPECT_TRUE(error_of([&] { return transfer->wait(); }));
    transfer.reset();
    transfer = engine().submit(request_of(false, file, into.data(), 1000, 0));
    transfer->cancel();
    transfer.reset();
    EXPECT_TRUE(engine().drain());
    // A status is not a look.
    transfer = engine().submit(request_of(false, file, into.data(), into.size(), 0));
    while (!transfer->done()) {
        std::this_thread::sleep_for(100us);
    }
    EXPECT_EQ(transfer->status(), TransferStatus::kFailed);
    transfer.reset();
    EXPECT_TRUE(error_of([&] { return engine().drain(); }));
}

TEST_P(Life, DroppedTransferGoesOn) {
    const auto data = pattern(1'000'003, 1);
    const File file = open("file");
    engine().submit(request_of(true, file, data.data(), data.size(), 5)).reset();
    EXPECT_TRUE(engine().drain());
    EXPECT_TRUE(get_bytes(file, 5, data.size() + 1) == data);
    EXPECT_EQ(engine().stats().running, 0U);
}

TEST_P(Life, LimitOnTransfersIsKept) {
    EngineOptions options = small_blocks();
    options.transfers_max = 3;
    use(options, slow());
    const auto data = pattern(1 << 20, 1);
    const File file = with_bytes("file", data);
    std::atomic<int> refused{0};
    std::atomic<std::uint32_t> most{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
        threads.emplace_back([&] {
            std::vector<std::byte> into(data.size());
            for (int done = 0; done < 2;) {
                TransferPtr transfer;
                const auto error = error_of([&] {
                    transfer =
                        engine().submit(request_of(false, file, into.data(), into.size(), 0));
                    return 0;
                });
                if (error) {
                    EXPECT_EQ(error->reason(), ErrorCode::kWouldBlock);
                    EXPECT_THAT(error->what(), ::testing::HasSubstr("transfers_max"));
                    ++refused;
                    std::this_thread::sleep_for(1ms);
                    continue;
                }
                const std::uint32_t running = engine().stats().running;
                std::uint32_t before = most.load();
                while (before < running && !most.compare_exchange_weak(before, running)) {
                }
                EXPECT_EQ(transfer->wait(), data.size());
                EXPECT_TRUE(into == data);
                ++done;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_LE(most.load(), 3U);
    if (fake()) {
        EXPECT_GT(refused.load(), 0);
    }
}

TEST_P(Life, UrgentPassesBackground) {
    use(small_blocks(), slow(5'000'000));  // 480 ms
    const File file = with_bytes("file", pattern(16 << 20, 1));
    std::vector<std::byte> far(12 << 20);
    std::vector<std::byte> near(1 << 20);
    const TransferPtr background = engine().submit(request_of(
        true, file, far.data(), far.size(), 4 << 20, {.priority = Priority::kBackground}));
    const TransferPtr raised = engine().submit(
        request_of(false, file, near.data(), near.size(), 0, {.priority = Priority::kBackground}));
    raised->set_priority(Priority::kUrgent);
    EXPECT_EQ(raised->wait(), near.size());
    if (fake()) {
        EXPECT_FALSE(background->done());
    }
    background->set_priority(Priority::kUrgent);
    EXPECT_EQ(background->wait(), far.size());
    background->set_priority(Priority::kBackground);  // over: nothing to it
}

TEST_P(Life, SyncIsDurable) {
    const auto data = pattern(100'001, 1);
    EXPECT_EQ(engine()
                  .run(request_of(true, path("new"), data.data(), data.size(), 7, {.sync = true}))
                  ->wait(),
              data.size());
    const File other = open("other");
    engine().write(other, data, 0);
    engine().write(other, data, 50'000, {.sync = true});
    if (fake()) {
        engine().disk().crash();
    }
    const File back = engine().files().open(path("new"));
    EXPECT_TRUE(get_bytes(back, 7, data.size() + 1) == data);
    const File also = engine().files().open(path("other"));
    EXPECT_EQ(also.size(), 150'001U);
    EXPECT_TRUE(get_bytes(also, 50'000, data.size()) == data);
}

TEST_P(SlowDisk, NotSyncedIsNotDurable) {
    const auto data = pattern(200'000, 1);
    int lost = 0;
    for (int i = 0; i < 8; ++i) {
        const std::string name = path("file" + std::to_string(i));
        engine().run(request_of(true, name, data.data(), data.size(), 0))->wait();
    }
    engine().disk().crash();
    for (int i = 0; i < 8; ++i) {
        const std::string name = path("file" + std::to_string(i));
        lost += error_of([&] {
            return get_bytes(engine().files().open(name), 0, data.size()) != data ? 1 : 0;
        })
                    ? 1
                    : 0;
    }
    EXPECT_GT(lost, 0);  // else the fake disk proves nothing about sync
}

TEST_P(Life, EngineEndsAfterWhatRuns) {
    const auto data = pattern(6'000'000, 1);
    File file;
    std::vector<TransferPtr> transfers;
    {
        const auto other = make(small_blocks(), slow(100'000));
        file = other->files().open(path("file"), {.access = Access::kReadWrite, .create = true});
        for (std::size_t i = 0; i < 6; ++i) {
            transfers.push_back(other->submit(
                request_of(true, file, data.data() + i * 1'000'000, 1'000'000, i * 1'000'000)));
        }
    }
    for (const TransferPtr& transfer : transfers) {
        EXPECT_TRUE(transfer->done());
        EXPECT_EQ(transfer->wait(), 1'000'000U);
    }
    EXPECT_TRUE(get_bytes(file, 0, data.size() + 1) == data);
}

TEST_P(Life, ManyThreadsOnOneEngine) {
    EngineOptions options;
    options.block_bytes = 65536;
    options.queue_depth = 8;
    options.channels = 2;
    use(options);
    constexpr std::size_t kThreads = 6;
    constexpr std::size_t kShare = 150'001;  // neighbours meet inside blocks
    const File file = open("file");
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            for (std::uint64_t round = 0; round < 6; ++round) {
                const auto data = pattern(kShare, t * 100 + round);
                engine().write(file, data, t * kShare);
                std::vector<std::byte> back(kShare);
                const TransferPtr transfer =
                    engine().submit(request_of(false, file, back.data(), back.size(), t * kShare));
                if (round % 2 == 0) {
                    std::vector<std::byte> head(100);
                    engine().read(file, head, t * kShare);
                    EXPECT_TRUE(std::equal(head.begin(), head.end(), data.begin()));
                }
                EXPECT_EQ(transfer->wait(), kShare);
                EXPECT_TRUE(back == data) << "thread " << t << ", round " << round;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (std::size_t t = 0; t < kThreads; ++t) {
        EXPECT_TRUE(get_bytes(file, t * kShare, kShare) == pattern(kShare, t * 100 + 5)) << t;
    }
    EXPECT_EQ(engine().stats().running, 0U);
}

TEST_P(Life, StatisticsCountWhatWasMoved) {
    const File file = open("file");
    const auto data = pattern(1 << 20, 1);
    engine().submit(request_of(true, file, data.data(), data.size(), 0))->wait();
    std::vector<std::byte> into(data.size());
    engine().submit(request_of(false, file, into.data(), into.size(), 0))->wait();
    const EngineStats stats = engine().stats();
    EXPECT_EQ(stats.bytes_written, data.size());
    EXPECT_EQ(stats.bytes_read, data.size());
    EXPECT_GE(stats.requests, 2U);
    EXPECT_EQ(stats.inline_requests, 0U);
    EXPECT_GT(stats.latency.max, 0);
    EXPECT_GE(stats.latency.max, stats.latency.p50);
    std::uint64_t requests = 0;
    std::int64_t upper_ns = 0;
    for (const LatencyBucket& bucket : stats.latency.histogram) {
        EXPECT_GT(bucket.upper_ns, upper_ns);
        upper_ns = bucket.upper_ns;
        requests += bucket.requests;
    }
    EXPECT_EQ(requests, stats.requests);
    EXPECT_EQ(upper_ns, stats.latency.max);
    engine().read(file, {into.data(), 4096}, 0);
    EXPECT_EQ(engine().stats().inline_requests, GetParam() == EngineKind::kAuto ? 1U : 0U);
}

}  // namespace
}  // namespace penstock::suite
