// SPDX-License-Identifier: Apache-2.0
// Any offset, any length, any address: what comes is what was asked for, and nothing else changes.
#include "suite/suite.hpp"
#include "support/same_bytes.hpp"
#include "support/seeds.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

namespace penstock::suite {
namespace {

using ::testing::HasSubstr;

class Shapes : public EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, Shapes, every_kind(), kind_name);

TransferOptions short_allowed() {
    TransferOptions options;
    options.allow_short = true;
    return options;
}

// ---- random transfers against files in memory

constexpr std::size_t kFileBytesMax = 600'000;

class RandomTransfers {
public:
    /// `gpus`: some extents have memory of these as well.
    explicit RandomTransfers(std::uint64_t seed, std::int32_t gpus = 0)
        : random_(seed), gpus_(gpus) {}

    [[nodiscard]] EngineOptions options() {
        EngineOptions options;
        options.block_bytes = 65536U << below(3);
        options.queue_depth = 1 + static_cast<std::uint32_t>(below(12));
        options.in_flight_bytes = 65536U << below(6);
        options.channels = 1 + static_cast<std::uint32_t>(below(3));
        return options;
    }

    [[nodiscard]] FakeSetup setup() {
        constexpr std::array<std::uint32_t, 4> kAligns{1, 4, 512, 4096};
        FakeSetup setup;
        setup.shape.direct = below(8) != 0;
        setup.shape.memory_align = kAligns[below(3)];
        setup.shape.read_align = kAligns[below(4)];
        setup.shape.write_align = kAligns[below(4)];
        setup.shape.block_bytes = below(2) == 0 ? 4096 : 16384;
        setup.shape.preallocates = below(2) == 0;
        setup.shape.page_cache = below(2) == 0;
        setup.shape.cachestat = below(4) != 0;
        setup.model.jitter_ns = below(2) == 0 ? 0 : 50'000;
        setup.seed = random_();
        setup.inline_too = below(2) == 0;
        return setup;
    }

    void add_file(File file) {
        models_.push_back(pattern(below(kFileBytesMax), random_()));
        put_bytes(file, 0, models_.back());
        files_.push_back(std::move(file));
    }

    void transfer(TestEngine& engine) {
        const bool write = below(2) == 0;
        TransferRequest request;
        request.write = write;
        request.files = files_;
        request.options.priority = static_cast<Priority>(below(3));
        request.options.cache = static_cast<CachePolicy>(below(3));
        request.options.allow_short = !write && below(3) == 0;
        std::vector<Arena> arenas;
        arenas.emplace_back(3'000'000, random_());
        for (std::int32_t gpu = 0; gpu < gpus_; ++gpu) {
            arenas.emplace_back(3'000'000, random_(), gpu);
        }
        make_extents(request, arenas);
        const std::vector<Extent> extents = request.extents;
        const bool may_be_short = request.options.allow_short;
        const bool blocking = below(2) == 0;
        TransferPtr transfer =
            blocking ? engine.run(std::move(request)) : engine.submit(std::move(request));
        const std::uint64_t moved = transfer->wait();
        std::uint64_t expected = 0;
        for (std::size_t i = 0; i < extents.size(); ++i) {
            const MemoryKind kind = extents[i].memory.kind;
            Arena& arena = arenas[kind == MemoryKind::kHost
                                      ? 0
                                      : 1 + static_cast<std::size_t>(extents[i].memory.device)];
            const std::uint64_t bytes =
                write ? apply_write(extents[i], arena) : apply_read(extents[i], arena);
            ASSERT_EQ(transfer->extent_bytes(i), bytes) << "extent " << i;
            ASSERT_TRUE(may_be_short || bytes == extents[i].memory.bytes);
            expected += bytes;
        }
        ASSERT_EQ(moved, expected);
        for (const Arena& arena : arenas) {
            ASSERT_EQ(arena.check(), "");
        }
        for (std::size_t i = 0; write && i < files_.size(); ++i) {
            ASSERT_EQ(files_[i].size(), models_[i].size());
            ASSERT_TRUE(
                support::same_bytes(get_bytes(files_[i], 0, models_[i].size() + 1), models_[i]))
                << "file " << i << " is not what was written";
        }
    }

private:
    std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

    std::uint64_t length() {
        switch (below(8)) {
            case 0:
                return below(3);
            case 1:
                return 4096 * (1 + below(8));
            case 2:
                return 1 + below(200'000);
            case 3:
                return 65536;
            default:
                return 1 + below(9000);
        }
    }

    // Written ranges do not overlap, or nobody could say what the file holds afterwards.
    void make_extents(TransferRequest& request, std::vector<Arena>& arenas) {
        const std::size_t count = below(24);
        std::vector<std::uint64_t> next(files_.size(), 0);
        std::uint64_t left = 1'500'000;
        for (std::size_t i = 0; i < count; ++i) {
            Extent extent;
            extent.file = static_cast<std::uint32_t>(below(files_.size()));
            extent.memory.bytes = std::min(length(), left);
            const std::uint64_t size = models_[extent.file].size();
            if (request.write) {
                const std::uint64_t gap = below(2) == 0 ? 0 : length();
                extent.offset = next[extent.file] + gap;
                next[extent.file] = extent.offset + extent.memory.bytes;
            } else {
                const bool adjoin = below(2) == 0;
                extent.offset = adjoin ? next[extent.file] : below(size + 1);
                if (!request.options.allow_short) {
                    extent.offset = std::min(extent.offset, size);
                    extent.memory.bytes = std::min(extent.memory.bytes, size - extent.offset);
                }
                next[extent.file] = extent.offset + extent.memory.bytes;
            }
            left -= extent.memory.bytes;
            const std::size_t align = below(2) == 0 ? 1 : 4096;
            Arena& arena = arenas[arenas.size() == 1 ? 0 : below(arenas.size())];
            extent.memory =
                arena.take_memory(extent.memory.bytes, align, below(3) == 0 ? 0 : below(300));
            request.extents.push_back(extent);
        }
        if (below(3) == 0) {
            std::shuffle(request.extents.begin(), request.extents.end(), random_);
        }
    }

    std::uint64_t apply_write(const Extent& extent, const Arena& arena) {
        std::vector<std::byte>& model = models_[extent.file];
        if (extent.memory.bytes != 0) {
            model.resize(std::max<std::size_t>(model.size(), extent.offset + extent.memory.bytes));
            std::memcpy(model.data() + extent.offset, arena.host_of(extent.memory),
                        extent.memory.bytes);
        }
        return extent.memory.bytes;
    }

    std::uint64_t apply_read(const Extent& extent, Arena& arena) {
        const std::vector<std::byte>& model = models_[extent.file];
        const std::uint64_t bytes =
            extent.offset >= model.size()
                ? 0
                : std::min<std::uint64_t>(extent.memory.bytes, model.size() - extent.offset);
        arena.expect(arena.host_of(extent.memory),
                     std::span(model).subspan(bytes == 0 ? 0 : extent.offset, bytes));
        return bytes;
    }

    std::mt19937_64 random_;
    std::int32_t gpus_;
    std::vector<File> files_;
    std::vector<std::vector<std::byte>> models_;
};

class RandomShapes : public Shapes {
protected:
    void play(std::int32_t gpus);
};
INSTANTIATE_TEST_SUITE_P(Backends, RandomShapes, every_kind(), kind_name);

void RandomShapes::play(std::int32_t gpus) {
    for (std::uint64_t seed = 1; seed <= support::engine_seeds(gpus == 0 ? 6 : 2); ++seed) {
        SCOPED_TRACE(seed);
        RandomTransfers random(seed, gpus);
        use(random.options(), random.setup());
        for (int i = 0; i < 3; ++i) {
            random.add_file(open("file" + std::to_string(i), true));
        }
        for (int i = 0; i < 5; ++i) {
            random.transfer(engine());
            if (HasFatalFailure()) {
                return;
            }
        }
    }
}

TEST_P(RandomShapes, EqualAModel) {
    play(0);
}

// Memory of the host and of two GPUs in one transfer: copies in any order, late, none of them by a
// core of ours.
TEST_P(RandomShapes, OfTheHostAndTwoGpusEqualAModel) {
    if (on_installed_driver()) {
        if (suite_gpus() == 0) {
            GTEST_SKIP() << "no GPU";
        }
        play(suite_gpus());
        return;
    }
    fake_driver().calm();
    fake_driver().set_delays(7, 30);
    fake_driver().reset_counters();
    play(kFakeGpus);
    const FakeGpuCounters seen = fake_driver().counters();
    fake_driver().calm();
    EXPECT_GT(seen.copies_in, 0U);
    EXPECT_GT(seen.copies_out, 0U);
    EXPECT_EQ(seen.unpinned_async_copies, 0U);
    EXPECT_EQ(seen.missing_contexts, 0U);
}

// ---- single shapes

// Memory behind what a short read brought stays as it was, wherever the end of the file lies.
TEST_P(Shapes, ShortReadTouchesNothingBehindItsEnd) {
    for (const std::size_t size : {1U, 511U, 512U, 4095U, 4097U, 10'000U, 300'001U, 700'000U}) {
        const auto data = pattern(size, size);
        const File file = with_bytes("file" + std::to_string(size), data);
        for (const std::uint64_t offset : {0U, 1U, 512U, 4096U, 8192U, 299'008U}) {
            for (const std::size_t bytes : {100U, 4096U, 16'384U, 400'000U, 1U << 20}) {
                Arena arena((1 << 20) + 3 * 4096);
                const auto into = arena.take(bytes, offset % 512 == 0 ? 4096 : 1);
                const std::size_t got =
                    engine()
                        .run(request_of(false, file, into.data(), bytes, offset, short_allowed()))
                        ->wait();
                ASSERT_EQ(got, offset >= size ? 0 : std::min<std::size_t>(bytes, size - offset));
                if (got != 0) {
                    arena.expect(into.data(), std::span(data).subspan(offset, got));
                }
                ASSERT_EQ(arena.check(), "") << size << " " << offset << " " << bytes;
            }
        }
    }
}

// A whole block would end past the largest possible offset.
TEST_P(Shapes, EndOfAllOffsets) {
    const File file = with_bytes("file", pattern(100, 1));
    constexpr std::uint64_t kOffsets = std::uint64_t{1} << 63;
    for (const std::uint64_t before : {2U, 4096U, 5000U, 70'000U}) {
        Arena arena(100'000);
        for (const std::size_t align : {1U, 4096U}) {
            const auto into = arena.take(before - 1, align, 0);
            const std::uint64_t offset = kOffsets - before;
            EXPECT_EQ(
                engine()
                    .run(request_of(false, file, into.data(), into.size(), offset, short_allowed()))
                    ->wait(),
                0U);
            if (before > 5000) {
                break;
            }
        }
        EXPECT_EQ(arena.check(), "");
    }
}

// Two extents of one write that share a byte are refused, for which comes last is not fixed.
TEST_P(Shapes, OverlappingWritesAreRefused) {
    const File file = with_bytes("file", pattern(50'000, 1));
    std::vector<std::byte> data(10'000);
    const auto error_for = [&](std::vector<Extent> extents) {
        TransferRequest request;
        request.write = true;
        request.files = {file, file};
        for (Extent& extent : extents) {
            extent.memory.data = data.data();
        }
        request.extents = std::move(extents);
        return error_of([&] { return engine().submit(request)->wait(); });
    };
    for (const auto& extents :
         std::vector<std::vector<Extent>>{{{2048, {nullptr, 4096}, 0}, {0, {nullptr, 4096}, 0}},
                                          {{0, {nullptr, 4096}, 0}, {4095, {nullptr, 1}, 0}},
                                          {{0, {nullptr, 10}, 1},
                                           {0, {nullptr, 10}, 0},
                                           {9, {nullptr, 0}, 1},
                                           {9, {nullptr, 5}, 1}},
                                          {{100, {nullptr, 10}, 0}, {100, {nullptr, 10}, 0}}}) {
        const auto error = error_for(extents);
        ASSERT_TRUE(error);
        EXPECT_EQ(error->reason(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error->what(), HasSubstr("both write byte"));
    }
    EXPECT_FALSE(
        error_for({{4096, {nullptr, 100}, 0}, {0, {nullptr, 4096}, 0}, {50, {nullptr, 0}, 0}}));
    EXPECT_FALSE(
        error_for({{0, {nullptr, 100}, 1}, {100, {nullptr, 4096}, 0}, {100, {nullptr, 9}, 1}}));
}

// Overlapping writes leave one of the written values, whole requests at a time.
TEST_P(Shapes, OverlappingWritesThatAreAllowedWriteOneOfTheirValues) {
    const File file = with_bytes("file", pattern(50'000, 1));
    const std::vector<std::byte> ones(4096, std::byte{1});
    std::vector<std::byte> twos(4096, std::byte{2});
    TransferRequest request;
    request.write = true;
    request.files = {file};
    request.options.allow_overlap = true;
    request.extents = {{4096, {const_cast<std::byte*>(ones.data()), 4096}, 0},
                       {4096, {twos.data(), 4096}, 0}};
    EXPECT_EQ(engine().submit(request)->wait(), 8192U);
    std::vector<std::byte> found(4096);
    engine().read(file, found, 4096);
    EXPECT_TRUE(found == ones || found == twos);
}

TEST_P(Shapes, NothingAtAll) {
    const File file = with_bytes("file", pattern(100, 1));
    Arena arena(4096);
    EXPECT_EQ(engine().read(file, arena.take(0), 50), 0U);
    EXPECT_EQ(engine().read(file, {}, 1'000'000), 0U);  // also behind the end
    EXPECT_EQ(engine().write(file, {}, 1'000'000), 0U);
    TransferRequest none;
    none.files = {file};
    EXPECT_EQ(engine().submit(none)->wait(), 0U);
    TransferRequest no_files;
    EXPECT_EQ(engine().submit(no_files)->wait(), 0U);
    EXPECT_EQ(file.size(), 100U);
    EXPECT_EQ(arena.check(), "");
}

TEST_P(Shapes, OneByteAtEveryOddPlace) {
    const auto data = pattern(20'000, 1);
    const File file = with_bytes("file", data);
    Arena arena(1 << 16);
    for (const std::uint64_t offset : {0, 1, 511, 512, 513, 4095, 4096, 19'999}) {
        const auto into = arena.take(1, 1, 7);
        EXPECT_EQ(engine().read(file, into, offset), 1U);
        arena.expect(into.data(), {data.data() + offset, 1});
    }
    EXPECT_EQ(arena.check(), "");
    auto model = data;
    const std::byte one{0x5a};
    for (const std::uint64_t offset : {0, 1, 4095, 4096, 12'287, 20'000}) {
        EXPECT_EQ(engine().write(file, {&one, 1}, offset), 1U);
        model.resize(std::max<std::size_t>(model.size(), offset + 1));
        model[offset] = one;
    }
    EXPECT_TRUE(get_bytes(file, 0, 30'000) == model);
}

TEST_P(Shapes, WritesExtendAndNeverTruncate) {
    const auto old = pattern(50'000, 1);
    const File file = with_bytes("file", old);
    const auto fresh = pattern(10'001, 2);
    engine().write(file, fresh, 3);
    EXPECT_EQ(file.size(), 50'000U);
    engine().run(request_of(true, path("file"), fresh.data(), fresh.size(), 20'000))->wait();
    EXPECT_EQ(file.size(), 50'000U);
    engine().write(file, fresh, 49'999);
    EXPECT_EQ(file.size(), 60'000U);
    engine().write(file, fresh, 100'000);  // a hole, which reads as zeros
    auto model = old;
    model.resize(110'001);
    for (const std::size_t offset : {3, 20'000, 49'999, 100'000}) {
        std::copy(fresh.begin(), fresh.end(), model.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    EXPECT_TRUE(get_bytes(file, 0, 200'000) == model);
}

TEST_P(Shapes, OffsetsPast2TiB) {
    FakeSetup setup;
    setup.shape.hollow = true;  // the fake disk has no sparse files
    use({}, setup);
    const File file = open("file");
    const std::uint64_t offset = (std::uint64_t{2} << 40) + 4097;
    const auto data = pattern(300'001, 1);
    EXPECT_EQ(engine().write(file, data, offset), data.size());
    EXPECT_EQ(file.size(), offset + data.size());
    Arena arena(1 << 19);
    const auto into = arena.take(data.size(), 4096);
    EXPECT_EQ(engine().read(file, into, offset), data.size());
    if (!fake()) {
        arena.expect(into.data(), data);
        EXPECT_EQ(arena.check(), "");
        EXPECT_TRUE(get_bytes(file, offset, data.size()) == data);
    }
}

// On the hollow disk: 5 GiB of real reads take seconds. The same memory for all of it is no
// sensible thing to ask for, but a cheap one.
TEST(HollowDisk, MoreThan4GiBInOneTransfer) {
    FakeSetup setup;
    setup.shape.hollow = true;
    const auto engine = TestEngine::make(EngineKind::kFake, {}, setup);
    File file = engine->files().open("/file", {.access = Access::kReadWrite, .create = true});
    const std::uint64_t total = std::uint64_t{5} << 30;
    file.truncate(total);
    Arena arena(2 << 20);
    const auto memory = arena.take(1 << 20, 4096);
    TransferRequest request = request_of(false, file, memory.data(), 0, 0);
    request.extents.clear();
    for (std::uint64_t offset = 0; offset < total; offset += memory.size()) {
        request.extents.push_back({offset, {memory.data(), memory.size()}, 0});
    }
    const TransferPtr transfer = engine->submit(std::move(request));
    EXPECT_EQ(transfer->total_bytes(), total);
    EXPECT_EQ(transfer->wait(), total);
    EXPECT_EQ(engine->stats().bytes_read, total);
    // One extent of that length: the memory is never touched by a hollow disk.
    EXPECT_EQ(engine->submit(request_of(false, file, memory.data(), total, 0))->wait(), total);
    EXPECT_EQ(engine->stats().bytes_read, 2 * total);
}

TEST_P(Shapes, EndOfFileNamesBothSizes) {
    const File file = with_bytes("file", pattern(10'000, 1));
    for (const bool blocking : {true, false}) {
        for (const auto& [offset, bytes] : {std::pair<std::uint64_t, std::uint64_t>{9'000, 2'000},
                                            {0, 200'000},
                                            {10'000, 1},
                                            {4096, 8192},
                                            {1'000'000, 10}}) {
            SCOPED_TRACE(std::to_string(offset) + "+" + std::to_string(bytes));
            Arena arena(1 << 18);
            const auto into = arena.take(bytes);
            TransferRequest request = request_of(false, file, into.data(), bytes, offset);
            const auto error = error_of([&] {
                return (blocking ? engine().run(request) : engine().submit(request))->wait();
            });
            ASSERT_TRUE(error);
            EXPECT_EQ(error->reason(), ErrorCode::kEndOfFile);
            EXPECT_EQ(error->operation(), "read");
            EXPECT_EQ(error->path(), path("file"));
            EXPECT_EQ(error->offset(), offset);
            EXPECT_THAT(error->what(),
                        HasSubstr("asked for, up to " + std::to_string(offset + bytes)));
            EXPECT_THAT(error->what(), HasSubstr(std::to_string(bytes) + " bytes from"));
            if (offset <= 10'000) {
                EXPECT_THAT(error->what(), HasSubstr("10000 bytes"));
            }
            arena.forget(into);
            EXPECT_EQ(arena.check(), "");
        }
    }
}

TEST_P(Shapes, ShortReadsSayWhatEachExtentGot) {
    const auto data = pattern(10'000, 1);
    const File file = with_bytes("file", data);
    const File empty = with_bytes("empty", {});
    Arena arena(1 << 18);
    TransferRequest request;
    request.files = {file, empty};
    request.options.allow_short = true;
    const std::vector<std::array<std::uint64_t, 4>>
        cases{// offset, bytes, file, bytes that come
              {0, 100, 0, 100},  {9'990, 10, 0, 10},       {9'990, 20, 0, 10},
              {10'000, 5, 0, 0}, {8'000, 1'500, 0, 1'500}, {9'500, 1'500, 0, 500},
              {11'000, 7, 0, 0},  // one run over the end
              {0, 4096, 1, 0},   {20'000, 0, 0, 0}};
    for (const auto& one : cases) {
        request.extents.push_back({one[0], arena.take(one[1]), static_cast<std::uint32_t>(one[2])});
    }
    const auto extents = request.extents;
    const TransferPtr transfer = engine().submit(std::move(request));
    EXPECT_EQ(transfer->wait(), 100U + 10 + 10 + 1500 + 500);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        EXPECT_EQ(transfer->extent_bytes(i), cases[i][3]) << i;
        auto* memory = extents[i].memory.data;
        arena.expect(memory,
                     std::span(data).subspan(cases[i][3] == 0 ? 0 : cases[i][0], cases[i][3]));
        arena.forget({memory + cases[i][3], extents[i].memory.bytes - cases[i][3]});
    }
    EXPECT_EQ(arena.check(), "");
}

TEST_P(Shapes, ThousandsOfExtentsOverManyFilesAreOneTransfer) {
    FakeSetup setup;
    setup.disks = 2;
    use({}, setup);
    constexpr std::size_t kFiles = 12;
    constexpr std::size_t kEach = 300;
    constexpr std::size_t kBytes = 777;
    TransferRequest request;
    request.write = true;
    for (std::size_t f = 0; f < kFiles; ++f) {
        request.files.push_back(
            open((fake() ? std::to_string(f % 2) + "/file" : "file") + std::to_string(f), true));
    }
    std::vector<std::byte> data = pattern(kFiles * kEach * kBytes, 3);
    for (std::size_t i = 0; i < kFiles * kEach; ++i) {
        request.extents.push_back({i / kFiles * kBytes,
                                   {data.data() + i * kBytes, kBytes},
                                   static_cast<std::uint32_t>(i % kFiles)});
    }
    TransferRequest back = request;
    EXPECT_EQ(engine().submit(std::move(request))->wait(), data.size());
    std::vector<std::byte> read(data.size());
    back.write = false;
    for (std::size_t i = 0; i < back.extents.size(); ++i) {
        back.extents[i].memory.data = read.data() + i * kBytes;
    }
    EXPECT_EQ(engine().submit(std::move(back))->wait(), data.size());
    EXPECT_TRUE(read == data);
}

TEST_P(Shapes, WrongArgumentsThrowAtTheCall) {
    const File file = with_bytes("file", pattern(100, 1));
    std::array<std::byte, 16> memory{};
    const auto wrong = [&](const TransferRequest& request, const char* what,
                           ErrorCode reason = ErrorCode::kInvalidArgument) {
        const auto error = error_of([&] { return engine().submit(request) != nullptr; });
        ASSERT_TRUE(error) << what;
        EXPECT_EQ(error->reason(), reason) << error->what();
        EXPECT_THAT(error->what(), HasSubstr(what));
    };
    wrong(request_of(false, file, nullptr, 16, 0), "no memory");
    wrong(request_of(false, file, memory.data(), 16, INT64_MAX - 8), "past the largest offset");
    wrong(request_of(false, file, memory.data(), UINT64_MAX, 16), "past the largest offset");
    wrong(request_of(false, File(), memory.data(), 16, 0), "not open", ErrorCode::kClosed);
    TransferRequest number = request_of(false, file, memory.data(), 16, 0);
    number.extents[0].file = 1;
    wrong(number, "names file 1, and there are 1 files");
    TransferRequest device = request_of(false, file, memory.data(), 16, 0);
    device.extents[0].memory.kind = MemoryKind::kDevice;
    device.extents[0].memory.device = 3;
    wrong(device, "extent 0: ");
    wrong(device, "no memory of a GPU");
    device.extents[0].memory.device = -1;
    wrong(device, "devices count from 0");
    wrong(request_of(false, file, memory.data(), 1, 0, {.sync = true}), "sync is for writes");
    wrong(request_of(true, file, memory.data(), 1, 0, {.allow_short = true}),
          "allow_short is for reads");
    TransferRequest rows = request_of(false, file, memory.data(), 0, 0);
    const std::vector<std::uint64_t> ids{0, 16};
    rows.rows = Rows{.tables = {{.row_bytes = 8, .stride_bytes = std::uint64_t{1} << 60}},
                     .ids = ids,
                     .memory = memory};
    if (!fake()) {  // looked at before the core, which the fake engine is
        wrong(rows, "extents and rows");
    }
    rows.extents.clear();
    wrong(rows, "row 16");  // 16 << 60 is 0 again
    rows.rows->memory.bytes = 15;
    rows.rows->tables[0].stride_bytes = 8;
    wrong(rows, "ids[1] goes to place 1");
    TransferRequest both = request_of(false, file, memory.data(), 1, 0);
    both.paths = {path("file")};
    wrong(both, "files or paths");
    const File reader = engine().files().open(path("file"));
    wrong(request_of(true, reader, memory.data(), 1, 0), "open for reading only");
    const File writer = engine().files().open(path("file"), {.access = Access::kWrite});
    wrong(request_of(false, writer, memory.data(), 1, 0), "open for writing only");
    EXPECT_EQ(engine().stats().running, 0U);
}

}  // namespace
}  // namespace penstock::suite
