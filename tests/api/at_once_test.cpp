// SPDX-License-Identifier: Apache-2.0
// Small calls that are one call of the kernel's on the caller's thread: the bytes are right,
// counted, and those of a transfer in every other case; close(), forks and policies hold for them.
#include "os/file.hpp"
#include "support/temp_folder.hpp"

#include <penstock/penstock.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kBytes = 4 << 20;

class AtOnce : public ::testing::Test {
protected:
    void SetUp() override {
        data_.resize(kBytes);
        std::mt19937_64 random(7);
        for (std::size_t i = 0; i < data_.size(); i += 8) {
            const std::uint64_t word = random();
            std::memcpy(data_.data() + i, &word, 8);
        }
        file_ = File(path_, {.access = Access::kReadWrite, .create = true});
        engine_.write(file_, data_);
        file_.sync();
        if (!file_.handle()->info().asks_cache) {
            GTEST_SKIP() << "no direct I/O here: " << file_.info().reason;
        }
        os::CachedPages pages;
        if (file_.handle()->cached_pages(0, 1, pages) != 0) {
            GTEST_SKIP() << "no cachestat(2) here";
        }
    }

    [[nodiscard]] int fd() const { return file_.handle()->descriptor(os::IoPath::kBuffered); }
    /// The kernel keeps pages for a moment that another core has just put into its lists.
    void evict() const {
        os::CachedPages pages{.pages = 1};
        for (int tries = 0; pages.pages != 0 && tries < 200; ++tries) {
            ASSERT_EQ(::posix_fadvise(fd(), 0, 0, POSIX_FADV_DONTNEED), 0);
            ASSERT_EQ(file_.handle()->cached_pages(0, kBytes, pages), 0);
            std::this_thread::sleep_for(std::chrono::milliseconds(pages.pages == 0 ? 0 : 10));
        }
        ASSERT_EQ(pages.pages, 0U);
    }
    /// Brings the file into the cache, and lets the engine find that out.
    void warm_up() {
        std::vector<std::byte> all(kBytes);
        ASSERT_EQ(::pread(fd(), all.data(), all.size(), 0), static_cast<ssize_t>(kBytes));
        engine_.read(file_, std::span(all).first(512), 99);
        engine_.read(file_, std::span(all).first(512), 999);
    }
    [[nodiscard]] bool is_there(std::uint64_t offset, std::span<const std::byte> got) const {
        return std::memcmp(got.data(), data_.data() + offset, got.size()) == 0;
    }

    support::TempFolder folder_;
    std::string path_ = folder_.path() + "/file";
    Engine engine_;
    File file_;
    std::vector<std::byte> data_;
};

TEST_F(AtOnce, WhatIsCachedIsReadWithoutATransfer) {
    warm_up();
    const EngineStats before = engine_.stats();
    const std::uint64_t transfers = engine_.submitted();
    std::vector<std::byte> into(64 << 10);
    std::uint64_t bytes = 0;
    std::mt19937_64 random(1);
    for (int i = 0; i < 500; ++i) {
        const std::size_t some = 1 + random() % into.size();
        const std::uint64_t offset = random() % (kBytes - some);
        ASSERT_EQ(engine_.read(file_, std::span(into).first(some), offset), some);
        ASSERT_TRUE(is_there(offset, std::span(into).first(some))) << offset << " " << some;
        bytes += some;
    }
    const EngineStats after = engine_.stats();
    EXPECT_EQ(engine_.submitted(), transfers);
    EXPECT_EQ(after.bytes_cached - before.bytes_cached, bytes);
    EXPECT_EQ(after.bytes_read, before.bytes_read);
    EXPECT_EQ(after.requests - before.requests, 500U);
    EXPECT_EQ(after.inline_requests - before.inline_requests, 500U);
    EXPECT_EQ(after.cache_questions, before.cache_questions);
}

TEST_F(AtOnce, WhatIsColdComesFromTheDeviceAndStaysOutOfTheCache) {
    warm_up();
    evict();
    ASSERT_EQ(::posix_fadvise(fd(), 0, 0, POSIX_FADV_RANDOM), 0);  // no page but what is missed
    const Buffer buffer = MemoryPool().take(kPage);
    const std::span into(buffer.data(), kPage);
    const EngineStats before = engine_.stats();
    const std::uint64_t transfers = engine_.submitted();
    for (std::uint64_t i = 0; i < 300; ++i) {
        const std::uint64_t offset = (i * 7919 % (kBytes / kPage)) * kPage;
        ASSERT_EQ(engine_.read(file_, into, offset), kPage);
        ASSERT_TRUE(is_there(offset, into));
    }
    os::CachedPages pages;
    ASSERT_EQ(file_.handle()->cached_pages(0, kBytes, pages), 0);
    EXPECT_LE(pages.pages, 16U);
    const EngineStats after = engine_.stats();
    EXPECT_LE(engine_.submitted() - transfers, 60U);  // questions are the transfers'
    EXPECT_EQ(after.bytes_read + after.bytes_cached - before.bytes_read - before.bytes_cached,
              300 * kPage);
    EXPECT_EQ(after.requests - before.requests, 300U);
    EXPECT_GE(after.latency.p50, 100);
}

// A miss brings its pages into the cache. They are no sign of a file that is cached.
TEST_F(AtOnce, ListsOfAColdFileStayOutOfTheCache) {
    warm_up();
    evict();
    ASSERT_EQ(::posix_fadvise(fd(), 0, 0, POSIX_FADV_RANDOM), 0);
    std::vector<std::byte> into(3 * 512);
    for (std::uint64_t i = 0; i < 200; ++i) {
        const std::uint64_t page = (i * 7919 % (kBytes / kPage)) * kPage;
        TransferRequest request;
        request.files = {file_};
        for (std::uint64_t k = 0; k < 3; ++k) {
            request.extents.push_back({page + k * 1000, std::span(into).subspan(k * 512, 512), 0});
        }
        engine_.run(std::move(request)).wait();
        ASSERT_TRUE(is_there(page + 2000, std::span(into).last(512)));
    }
    os::CachedPages pages;
    ASSERT_EQ(file_.handle()->cached_pages(0, kBytes, pages), 0);
    EXPECT_LE(pages.pages, 16U);
}

TEST_F(AtOnce, AColdReadIsATransferWhereItIsNotAlignedOrMayBeShort) {
    evict();
    const File file(path_, {.cache = CachePolicy::kDirect});
    const Buffer buffer = MemoryPool().take(2 * kPage);
    const std::span into(buffer.data(), kPage);
    ASSERT_EQ(engine_.try_read_at_once(file, into, kPage), kPage);
    ASSERT_TRUE(is_there(kPage, into));
    EXPECT_FALSE(engine_.try_read_at_once(file, into, kPage + 1).has_value());
    EXPECT_FALSE(engine_.try_read_at_once(file, into.first(100), 0).has_value());
    EXPECT_FALSE(engine_.try_read_at_once(file, {into.data() + 1, kPage}, 0).has_value());
    TransferOptions shorter;
    shorter.allow_short = true;
    EXPECT_FALSE(engine_.try_read_at_once(file, into, 0, shorter).has_value());
    EXPECT_FALSE(engine_.try_read_at_once(file, into, kBytes).has_value());
    for (const std::uint64_t offset : {std::uint64_t{1}, kPage + 1, kBytes - kPage}) {
        ASSERT_EQ(engine_.read(file, into, offset), kPage);
        ASSERT_TRUE(is_there(offset, into));
    }
    TransferOptions cached;
    cached.cache = CachePolicy::kCached;
    EXPECT_FALSE(engine_.try_read_at_once(file_, into, 0, cached).has_value());
}

TEST_F(AtOnce, AListThatIsCachedIsCopiedByItsCaller) {
    warm_up();
    const EngineStats before = engine_.stats();
    std::vector<std::byte> into(100 * 1000);
    std::mt19937_64 random(3);
    for (int round = 0; round < 50; ++round) {
        TransferRequest request;
        request.files = {file_};
        std::vector<std::uint64_t> offsets;
        for (std::size_t i = 0; i < 100; ++i) {
            offsets.push_back(random() % (kBytes - 1000));
            request.extents.push_back(
                {offsets.back(), std::span(into).subspan(i * 1000, 1 + random() % 1000), 0});
        }
        const std::vector<Extent> extents = request.extents;
        engine_.run(std::move(request)).wait();
        for (const Extent& extent : extents) {
            ASSERT_TRUE(is_there(extent.offset, {extent.memory.data, extent.memory.bytes}));
        }
    }
    const EngineStats after = engine_.stats();
    EXPECT_GT(after.bytes_cached, before.bytes_cached);
    EXPECT_EQ(after.bytes_read, before.bytes_read);
    // The first asks, and finds that they are cached.
    EXPECT_GE(after.inline_requests - before.inline_requests, 49U);
}

// A list is counted as its pieces would be, and what was copied in vain is not counted twice.
TEST_F(AtOnce, ListsAreCountedOnceAndAsReadsOfTheirFilesAre) {
    warm_up();
    const support::TempFolder memory("/dev/shm");
    const File shared(memory.path() + "/file", {.access = Access::kReadWrite, .create = true});
    engine_.write(shared, data_);
    std::vector<std::byte> into(4 * 1000);
    const auto read_of_both = [&](std::uint64_t offset) {
        TransferRequest request;
        request.files = {file_, shared};
        for (std::uint32_t i = 0; i < 4; ++i) {
            request.extents.push_back(
                {offset + i * 5000, std::span(into).subspan(i * 1000, 1000), i / 2});
        }
        const EngineStats before = engine_.stats();
        engine_.run(std::move(request)).wait();
        const EngineStats after = engine_.stats();
        EngineStats moved;
        moved.bytes_read = after.bytes_read - before.bytes_read;
        moved.bytes_cached = after.bytes_cached - before.bytes_cached;
        moved.inline_requests = after.inline_requests - before.inline_requests;
        return moved;
    };
    EngineStats moved = read_of_both(0);
    EXPECT_EQ(moved.bytes_cached, 2000U);
    EXPECT_EQ(moved.bytes_read, 2000U);
    EXPECT_EQ(moved.inline_requests, 2U);

    // The second file is cut below what is asked for: its transfer tells, and the copy of the first
    // file's bytes was for nothing.
    File(shared.path(), {.access = Access::kReadWrite}).truncate(100);
    TransferRequest request;
    request.files = {file_, shared};
    request.extents = {{0, std::span(into).first(1000), 0}, {0, std::span(into).last(1000), 1}};
    const EngineStats before = engine_.stats();
    EXPECT_THROW(engine_.run(std::move(request)).wait(), Error);
    EXPECT_EQ(engine_.stats().inline_requests, before.inline_requests);
}

// Some of it is there and some is not: what was copied is copied again, by those who read the rest.
TEST_F(AtOnce, AListThatIsHalfCachedIsRight) {
    for (int round = 0; round < 20; ++round) {
        warm_up();
        ASSERT_EQ(::posix_fadvise(fd(), kBytes / 2, kBytes / 2, POSIX_FADV_DONTNEED), 0);
        std::vector<std::byte> into(200 * 512);
        std::vector<std::uint64_t> ids(200);
        std::mt19937_64 random(static_cast<std::uint64_t>(round));
        std::generate(ids.begin(), ids.end(), [&] { return random() % (kBytes / 512); });
        TransferRequest request;
        request.files = {file_};
        request.rows = Rows{
            .tables = {{.row_bytes = 512}}, .ids = ids, .memory = into, .memory_stride_bytes = 512};
        engine_.run(std::move(request)).wait();
        for (std::size_t i = 0; i < ids.size(); ++i) {
            ASSERT_TRUE(is_there(ids[i] * 512, std::span(into).subspan(i * 512, 512))) << i;
        }
    }
}

TEST_F(AtOnce, TheEndOfTheFileIsWhatATransferSaysOfIt) {
    warm_up();
    std::vector<std::byte> into(kPage);
    EXPECT_THROW(engine_.read(file_, into, kBytes - 100), Error);
    EXPECT_THROW(engine_.read(file_, into, kBytes + kPage), Error);
    TransferOptions shorter;
    shorter.allow_short = true;
    EXPECT_EQ(engine_.read(file_, into, kBytes - 100, shorter), 100U);
    EXPECT_TRUE(is_there(kBytes - 100, std::span(into).first(100)));
    EXPECT_EQ(engine_.read(file_, into, kBytes + kPage, shorter), 0U);
    EXPECT_EQ(engine_.read(file_, std::span(into).first(0), 0), 0U);
}

TEST_F(AtOnce, WrongCallsAreRefusedAsEver) {
    warm_up();
    std::vector<std::byte> into(kPage);
    TransferOptions synced;
    synced.sync = true;
    EXPECT_THROW(engine_.read(file_, into, 0, synced), Error);
    EXPECT_THROW(engine_.read(file_, into, UINT64_MAX, {}), Error);
    EXPECT_THROW(engine_.read(file_, Memory(nullptr, 16), 0), Error);
    EXPECT_THROW(engine_.read(File(), into, 0), Error);
    TransferOptions shorter;
    shorter.allow_short = true;
    EXPECT_THROW(engine_.write(file_, into, 0, shorter), Error);
    const File reads(path_);
    EXPECT_THROW(engine_.write(reads, into, 0), Error);
    EXPECT_FALSE(engine_.try_write_at_once(reads, into, 0).has_value());
    EXPECT_FALSE(engine_.try_read_at_once(File(), into, 0).has_value());
    const File writes(path_, {.access = Access::kWrite});
    EXPECT_FALSE(engine_.try_read_at_once(writes, into, 0).has_value());
}

TEST_F(AtOnce, APolicyOfTheFileTheCallOrTheEngineIsKept) {
    warm_up();
    std::vector<std::byte> into(kPage);
    ASSERT_TRUE(engine_.try_read_at_once(file_, into, 0).has_value());
    TransferOptions direct;
    direct.cache = CachePolicy::kDirect;
    const std::uint64_t cached = engine_.stats().bytes_cached;
    engine_.read(file_, into, 0, direct);
    EXPECT_FALSE(engine_.try_write_at_once(file_, into, 0, direct).has_value());
    const File past(path_, {.access = Access::kReadWrite, .cache = CachePolicy::kDirect});
    engine_.read(past, into, 0);
    EXPECT_EQ(engine_.stats().bytes_cached, cached);
    EXPECT_FALSE(engine_.try_write_at_once(past, into, 0).has_value());
    EngineOptions options;
    options.cache = CachePolicy::kDirect;
    Engine engine(options);
    engine.read(file_, into, 0);
    EXPECT_EQ(engine.stats().bytes_cached, 0U);
    EXPECT_FALSE(engine.try_write_at_once(file_, into, 0).has_value());
    EngineOptions off;
    off.inline_bytes_max = 0;
    Engine never(off);
    EXPECT_FALSE(never.try_read_at_once(file_, into, 0).has_value());
    TransferOptions synced;
    synced.sync = true;
    EXPECT_FALSE(engine_.try_write_at_once(file_, into, 0, synced).has_value());
}

TEST_F(AtOnce, SmallWritesAreSeenAtOnceAndSurviveASync) {
    const std::uint64_t transfers = engine_.submitted();
    std::mt19937_64 random(5);
    for (int i = 0; i < 400; ++i) {
        const std::size_t some = 1 + random() % 70'000;
        const std::uint64_t offset = random() % (kBytes - some);
        for (std::size_t k = 0; k < some; ++k) {
            data_[offset + k] = static_cast<std::byte>(random());
        }
        ASSERT_EQ(engine_.write(file_, std::span(data_).subspan(offset, some), offset), some);
        std::vector<std::byte> got(some);
        ASSERT_EQ(::pread(fd(), got.data(), some, static_cast<off_t>(offset)),
                  static_cast<ssize_t>(some));
        ASSERT_TRUE(is_there(offset, got));
    }
    EXPECT_EQ(engine_.submitted(), transfers);
    file_.sync();
    evict();
    std::vector<std::byte> all(kBytes);
    engine_.read(File(path_, {.cache = CachePolicy::kDirect}), all);
    EXPECT_TRUE(is_there(0, all));
}

// A concurrent call is waited for or refused: none moves a byte after close() has returned.
TEST_F(AtOnce, NothingIsMovedAfterClose) {
    warm_up();
    for (int round = 0; round < 20; ++round) {
        Engine engine;
        std::atomic<bool> closed{false};
        std::atomic<int> late{0};
        std::atomic<int> moved{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; ++t) {
            threads.emplace_back([&] {
                std::vector<std::byte> into(kPage);
                try {
                    while (true) {
                        const bool before = closed.load();
                        engine.read(file_, into, kPage);
                        late += before ? 1 : 0;
                        ++moved;
                    }
                } catch (const Error& error) {
                    EXPECT_EQ(error.reason(), ErrorCode::kClosed);
                }
            });
        }
        while (moved.load() < 200) {
            std::this_thread::yield();
        }
        ASSERT_TRUE(engine.close());
        closed = true;
        for (std::thread& thread : threads) {
            thread.join();
        }
        EXPECT_EQ(late.load(), 0);
        std::vector<std::byte> into(kPage);
        EXPECT_THROW(engine.read(file_, into, 0), Error);
        EXPECT_FALSE(engine.try_read_at_once(file_, into, 0).has_value());
        EXPECT_FALSE(engine.try_write_at_once(file_, into, 0).has_value());
    }
}

// The write hangs as one whose disk does not answer.
TEST_F(AtOnce, CloseWaitsForAWriteThatHangsAsLongAsItIsToldAndWithoutWorkTimed) {
    warm_up();
    std::unique_lock gate(file_.handle()->edge_gate());
    const std::uint64_t before = engine_.stats().requests;
    std::atomic<bool> begun{false};
    std::thread writer([&] {
        begun = true;
        engine_.write(file_, std::span(data_).first(100), 0);
    });
    while (!begun) {
        std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it is at the gate by now
    const auto cpu = [] {
        timespec now{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
    };
    const auto cpu_before = cpu();
    const auto began = std::chrono::steady_clock::now();
    EXPECT_FALSE(engine_.close(std::chrono::milliseconds(500)));
    const auto took = std::chrono::steady_clock::now() - began;
    EXPECT_GE(took, std::chrono::milliseconds(500));
    EXPECT_LT(took, std::chrono::milliseconds(1500));
    EXPECT_LT(cpu() - cpu_before, std::chrono::milliseconds(50));
    EXPECT_EQ(engine_.stats().requests, before);
    gate.unlock();
    EXPECT_TRUE(engine_.close());
    EXPECT_EQ(engine_.stats().requests, before + 1);
    writer.join();
}

TEST_F(AtOnce, ForksWhileThreadsReadLeaveBothSidesWorking) {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer: a child of fork() may start no threads";
#endif
    warm_up();
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            std::vector<std::byte> into(kPage);
            while (!stop.load()) {
                if (t == 0) {
                    engine_.write(file_, std::span(data_).first(kPage), 0);
                } else {
                    engine_.read(file_, into, kPage);
                }
            }
        });
    }
    for (int i = 0; i < 20; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            std::array<std::byte, kPage> into{};
            const bool right = engine_.read(file_, into, kPage) == kPage && is_there(kPage, into) &&
                               engine_.write(file_, std::span(data_).first(kPage), 0) == kPage;
            ::_exit(right ? 0 : 1);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
    stop = true;
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// While a long transfer is at the device, what is cached need not wait for it.
TEST_F(AtOnce, CachedReadsPassByWhatTheChannelsHave) {
    warm_up();
    const File cold(folder_.path() + "/cold", {.access = Access::kReadWrite, .create = true});
    std::vector<std::byte> large(64 << 20);
    Transfer writing = engine_.write_async(cold, large);
    std::array<std::byte, kPage> into{};
    const std::uint64_t transfers = engine_.submitted();
    for (std::uint64_t i = 0; i < 100; ++i) {
        ASSERT_EQ(engine_.read(file_, into, i * kPage), kPage);
        ASSERT_TRUE(is_there(i * kPage, into));
    }
    EXPECT_EQ(engine_.submitted(), transfers);
    writing.wait();
}

}  // namespace
}  // namespace penstock
