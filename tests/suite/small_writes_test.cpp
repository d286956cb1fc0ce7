// SPDX-License-Identifier: Apache-2.0
// Small writes under `auto`: through the page cache where a device would only be waited for, one
// call a run, visible to every reader at once, whole after the sync, and never in the way of what
// goes past the cache.
#include "base/align.hpp"
#include "os/file.hpp"
#include "suite/suite.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

namespace penstock::suite {
namespace {

constexpr std::uint64_t kKiB = 1 << 10;

class SmallWrites : public EveryBackend {
protected:
    void SetUp() override {
        EveryBackend::SetUp();
        if (IsSkipped()) {
            return;
        }
        if (fake()) {
            FakeSetup setup;
            setup.shape.page_cache = true;
            use({}, setup);
        }
        file_ = engine().files().open(path("file"), {.access = Access::kReadWrite, .create = true});
        if (!file_.handle()->info().asks_cache) {
            GTEST_SKIP() << "no direct I/O here: " << file_.info().reason;
        }
    }
    void TearDown() override {
        file_ = {};
        EveryBackend::TearDown();
    }

    /// Requests that a write took, and how many of them went through the page cache.
    struct Taken {
        std::uint64_t requests = 0;
        std::uint64_t cached = 0;
    };
    template <typename Write>
    Taken taken(Write write) {
        const EngineStats before = engine().stats();
        write();
        const EngineStats after = engine().stats();
        return {after.requests - before.requests, after.edge_requests - before.edge_requests};
    }
    void expect_bytes(std::uint64_t offset, std::span<const std::byte> data) {
        EXPECT_TRUE(
            std::equal(data.begin(), data.end(), get_bytes(file_, offset, data.size()).begin()));
        std::vector<std::byte> into(data.size());
        for (const CachePolicy policy : {CachePolicy::kAuto, CachePolicy::kDirect}) {
            const File reader = engine().files().open(path("file"), {.cache = policy});
            engine().read(reader, into, offset);
            EXPECT_TRUE(std::equal(data.begin(), data.end(), into.begin())) << name_of(policy);
        }
    }

    File file_;
};
INSTANTIATE_TEST_SUITE_P(Backends, SmallWrites,
                         ::testing::Values(EngineKind::kUring, EngineKind::kAio, EngineKind::kPosix,
                                           EngineKind::kAuto, EngineKind::kFake),
                         kind_name);

TEST_P(SmallWrites, ABlockingRecordIsOneBufferedCallAndThereForEverybody) {
    std::uint64_t end = 0;
    for (const std::uint64_t bytes : {std::uint64_t{1}, 4 * kKiB, std::uint64_t{10'000}, 64 * kKiB,
                                      std::uint64_t{1'000'000}, base::kMiB}) {
        const auto record = pattern(bytes, bytes);
        const Taken t = taken([&] { engine().write(file_, record, end); });
        EXPECT_EQ(t.requests, 1U) << bytes;
        EXPECT_EQ(t.cached, 1U) << bytes;
        expect_bytes(end, record);
        end += bytes;
    }
    EXPECT_EQ(file_.size(), end);
}

// Longer writes are the device's: an aligned block and more at once, and what nobody waits for.
TEST_P(SmallWrites, BigAndUnawaitedAlignedWritesAreDirect) {
    const auto data = pattern(4 * base::kMiB, 1);
    EXPECT_EQ(taken([&] { engine().write(file_, data, 0); }).cached, 0U);
    const auto part = std::span(data).first(64 * kKiB);
    EXPECT_EQ(taken([&] {
                  engine().submit(request_of(true, file_, part.data(), part.size(), 0))->wait();
              }).cached,
              0U);
    expect_bytes(0, data);
}

TEST_P(SmallWrites, DirectFilesStayDirect) {
    const File direct = engine().files().open(
        path("file"), {.access = Access::kReadWrite, .cache = CachePolicy::kDirect});
    const auto data = pattern(16 * kKiB, 1);
    EXPECT_EQ(taken([&] { engine().write(direct, data, 0); }).cached, 0U);
    expect_bytes(0, data);
}

// 4,097 bytes every 8 KiB: one call each, and none of them waits for another device request.
TEST_P(SmallWrites, AListOfOddPiecesTakesOneCallARun) {
    constexpr std::size_t kPieces = 600;
    constexpr std::size_t kBytes = 4097;
    const auto data = pattern(kPieces * kBytes, 3);
    std::vector<std::byte> model(kPieces * 8 * kKiB);
    put_bytes(file_, 0, model);
    TransferRequest request;
    request.write = true;
    request.files = {file_};
    for (std::size_t i = 0; i < kPieces; ++i) {
        const auto piece = std::span(data).subspan(i * kBytes, kBytes);
        // In two extents, of which the run is made.
        request.extents.push_back({i * 8 * kKiB + 17, to_write(piece.first(1000)), 0});
        request.extents.push_back({i * 8 * kKiB + 1017, to_write(piece.subspan(1000)), 0});
        std::copy(piece.begin(), piece.end(),
                  model.begin() + static_cast<std::ptrdiff_t>(i * 8 * kKiB + 17));
    }
    request.options.sync = true;
    const Taken t = taken([&] { engine().run(request)->wait(); });
    EXPECT_EQ(t.requests, kPieces);
    EXPECT_EQ(t.cached, kPieces);
    EXPECT_TRUE(get_bytes(file_, 0, model.size()) == model);
}

// Threads append odd records one after another, some small, some with a direct middle, while others
// read them through the cache and past it. In the end the sync finds nothing that was lost: a
// direct write that could not drop a page would make it EIO.
TEST_P(SmallWrites, AppendersOfEverySizeAreRightForReadersOfEveryKind) {
    constexpr std::uint64_t kEnd = 6 * base::kMiB;
    const auto truth = pattern(kEnd + 3 * base::kMiB, 5);
    std::atomic<std::uint64_t> next{0};
    std::atomic<std::uint64_t> wrong{0};
    std::atomic<std::uint64_t> looks{0};
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (std::uint64_t w = 0; w < 3; ++w) {
        threads.emplace_back([&, w] {
            std::mt19937_64 random(w);
            while (true) {
                const std::uint64_t bytes =
                    1 + random() % (random() % 16 == 0 ? 2 * base::kMiB : 20'000);
                const std::uint64_t begin = next.fetch_add(bytes);
                if (begin >= kEnd) {
                    return;
                }
                const auto request = request_of(true, file_, truth.data() + begin, bytes, begin);
                (random() % 4 == 0 ? engine().submit(request) : engine().run(request))->wait();
                const auto seen = get_bytes(file_, begin, bytes);
                wrong += std::equal(seen.begin(), seen.end(),
                                    truth.begin() + static_cast<std::ptrdiff_t>(begin))
                             ? 0
                             : 1;
            }
        });
    }
    std::thread reader([&] {
        const File direct = engine().files().open(path("file"), {.cache = CachePolicy::kDirect});
        std::vector<std::byte> into(200'000);
        std::mt19937_64 random(9);
        TransferOptions short_too;
        short_too.allow_short = true;
        while (!stop) {
            const std::uint64_t size = file_.size();
            const std::uint64_t begin = random() % (size + 1);
            const std::uint64_t got =
                engine().read(random() % 2 == 0 ? direct : file_, into, begin, short_too);
            for (std::uint64_t i = 0; i < got;
                 ++i) {  // zeros are holes that are still to be filled
                wrong += into[i] == truth[begin + i] || into[i] == std::byte{} ? 0 : 1;
            }
            ++looks;
        }
    });
    for (std::thread& thread : threads) {
        thread.join();
    }
    stop = true;
    reader.join();
    EXPECT_EQ(wrong, 0U);
    EXPECT_GT(looks, 0U);
    file_.sync();
    const std::uint64_t size = file_.size();
    expect_bytes(0, std::span(truth).first(size));
}

// Many new files, synced in one list, share the syncs of their folders: all of it is there after a
// power cut.
TEST_P(SmallWrites, SyncedNewFilesSurviveAPowerCut) {
    if (!fake()) {
        GTEST_SKIP() << "needs a disk that can be cut off";
    }
    constexpr std::uint32_t kFiles = 150;
    const auto data = pattern(5000, 1);
    TransferRequest request;
    request.write = true;
    FileSystem files = engine().files();
    for (const char* folder : {"/a", "/b"}) {
        files.make_folder(folder);
    }
    files.sync_folder("/");
    for (std::uint32_t i = 0; i < kFiles; ++i) {
        request.paths.push_back((i % 3 == 0 ? "/a/" : "/b/") + std::to_string(i));
        request.extents.push_back({0, to_write(data), i});
    }
    request.options.sync = true;
    engine().run(request)->wait();
    engine().disk().crash();
    for (const std::string& name : request.paths) {
        const File file = files.open(name);
        EXPECT_TRUE(get_bytes(file, 0, data.size() + 1) == data) << name;
    }
}

}  // namespace
}  // namespace penstock::suite
