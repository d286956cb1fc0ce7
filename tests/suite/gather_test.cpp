// SPDX-License-Identifier: Apache-2.0
// Many small pieces in one transfer: extents in any order, and rows of tables.
#include "suite/suite.hpp"

#include <algorithm>
#include <array>
#include <random>

namespace penstock::suite {
namespace {

using ::testing::HasSubstr;

class Gather : public EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, Gather, every_kind(), kind_name);

TEST_P(Gather, SmallExtentsInAnyOrderAreReadOverTheirGaps) {
    constexpr std::size_t kCount = 3000;
    const auto truth = pattern(1 << 20, 5);
    const File file = with_bytes("file", truth);
    std::mt19937_64 random(5);
    Arena arena(2'000'000, 1);
    TransferRequest request;
    request.files = {file};
    for (std::size_t i = 0; i < kCount; ++i) {
        const std::uint64_t bytes = i % 50 == 0 ? 0 : 1 + random() % 512;
        const std::uint64_t offset =
            i % 10 == 1 ? request.extents[i / 2].offset : random() % (truth.size() - 512);
        request.extents.push_back({offset, arena.take(bytes), 0});
    }
    const std::uint64_t before = engine().stats().requests;
    const TransferPtr transfer = engine().submit(request);
    static_cast<void>(transfer->wait());
    if (GetParam() != EngineKind::kAuto) {  // which takes cached bytes one by one from the cache
        EXPECT_LT(engine().stats().requests - before, 10U);
    }
    for (std::size_t i = 0; i < kCount; ++i) {
        const Extent& extent = request.extents[i];
        EXPECT_EQ(transfer->extent_bytes(i), extent.memory.bytes);
        arena.expect(extent.memory.data,
                     std::span(truth).subspan(extent.offset, extent.memory.bytes));
    }
    EXPECT_EQ(arena.check(), "");
}

TEST_P(Gather, RowsGatherAndScatter) {
    constexpr std::uint64_t kRow = 1000;
    constexpr std::uint64_t kStride = 1024;
    constexpr std::uint64_t kBase = 123;
    const auto table = pattern(kBase + 2000 * kStride, 1);
    const File file = with_bytes("table", table);
    std::mt19937_64 random(7);
    Arena arena(1 << 20);
    TransferRequest request;
    request.files = {file};
    std::vector<std::uint64_t> ids(500);
    for (std::uint64_t& id : ids) {
        id = random() % 2000;
    }
    request.rows =
        Rows{.tables = {{.base = kBase, .row_bytes = kRow, .stride_bytes = kStride, .rows = 2000}},
             .ids = ids,
             .memory = arena.take(ids.size() * kRow)};
    const std::span<std::byte> memory = request.rows->memory.span();
    EXPECT_EQ(engine().submit(request)->wait(), ids.size() * kRow);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        arena.expect(memory.data() + i * kRow,
                     std::span(table).subspan(kBase + ids[i] * kStride, kRow));
    }
    EXPECT_EQ(arena.check(), "");
    // And back: each id once, what lies between the rows stays.
    request.write = true;
    ids.resize(2000 / 7);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = i * 7;
    }
    request.rows->ids = ids;
    auto model = table;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        std::memcpy(model.data() + kBase + i * 7 * kStride, memory.data() + i * kRow, kRow);
    }
    EXPECT_EQ(engine().submit(request)->wait(), ids.size() * kRow);
    EXPECT_TRUE(get_bytes(file, 0, model.size() + 1) == model);
}

// Three tables of two files, two of them in one, rows of two lengths, ids that come again.
TEST_P(Gather, RowsOfSeveralTablesGoWhereTheirDestinationsSay) {
    const std::array<std::vector<std::byte>, 2> bytes{pattern(400'000, 1), pattern(300'000, 2)};
    TransferRequest request;
    request.files = {with_bytes("one", bytes[0]), with_bytes("two", bytes[1])};
    const std::vector<RowTable> tables{
        {.base = 5, .row_bytes = 100, .rows = 1000},
        {.row_bytes = 64, .stride_bytes = 300, .rows = 900, .file = 1},
        {.base = 110'000, .row_bytes = 100, .stride_bytes = 128}};
    constexpr std::uint64_t kPlace = 104;
    std::mt19937_64 random(3);
    for (const bool one_space : {false, true}) {
        std::vector<std::uint64_t> ids;
        std::vector<std::uint32_t> table_of;
        std::vector<std::uint64_t> destinations;
        Arena arena(1 << 20, one_space ? 1 : 2);
        std::span<std::byte> memory = arena.take(700 * kPlace);
        std::vector<std::byte> expected(memory.begin(), memory.end());
        for (std::uint64_t i = 0; i < 600; ++i) {
            const auto t = static_cast<std::uint32_t>(random() % tables.size());
            const std::uint64_t id = i % 4 == 3 && i > 10 ? 17 : random() % 900;
            constexpr std::array<std::uint64_t, 3> kFirst{0, 1000, 1900};
            ids.push_back(one_space ? id + kFirst[t] : id);
            table_of.push_back(t);
            destinations.push_back(i * 541 % 700);
            const std::uint64_t stride =
                tables[t].stride_bytes == 0 ? tables[t].row_bytes : tables[t].stride_bytes;
            std::memcpy(expected.data() + destinations.back() * kPlace,
                        bytes[tables[t].file].data() + tables[t].base + id * stride,
                        tables[t].row_bytes);
        }
        request.rows = Rows{.tables = tables,
                            .ids = ids,
                            .destinations = destinations,
                            .memory = memory,
                            .memory_stride_bytes = kPlace};
        if (!one_space) {
            request.rows->table_of = table_of;
        }
        const std::uint64_t before = engine().stats().bytes_read;
        static_cast<void>(engine().run(request)->wait());
        EXPECT_LE(engine().stats().bytes_read - before, 700'000U);
        EXPECT_TRUE(std::equal(memory.begin(), memory.end(), expected.begin()));
        arena.expect(memory.data(), expected);
        EXPECT_EQ(arena.check(), "");
    }
}

TEST_P(Gather, WrongRowsThrowAtTheCallAndNameTheRow) {
    const File file = with_bytes("file", pattern(10'000, 1));
    std::array<std::byte, 400> memory{};
    const std::vector<std::uint64_t> ids{1, 7, 3};
    const Rows right{.tables = {{.row_bytes = 100, .rows = 50}}, .ids = ids, .memory = memory};
    const auto wrong = [&](const Rows& rows, const char* what) {
        TransferRequest request;
        request.files = {file};
        request.rows = rows;
        const auto error = error_of([&] { return engine().submit(request) != nullptr; });
        ASSERT_TRUE(error) << what;
        EXPECT_EQ(error->reason(), ErrorCode::kInvalidArgument) << error->what();
        EXPECT_THAT(error->what(), HasSubstr(what));
    };
    Rows rows = right;
    rows.tables[0].rows = 7;
    wrong(rows, "ids[1] is row 7 of a table of 7 rows");
    rows = right;
    const std::vector<std::uint64_t> huge{0, UINT64_MAX / 2};
    rows.ids = huge;
    rows.tables[0].rows = UINT64_MAX;
    wrong(rows, "ids[1] is row 9223372036854775807");
    rows = right;
    rows.memory = std::span(memory).first(299);
    wrong(rows, "ids[2] goes to place 2");
    rows = right;
    const std::vector<std::uint64_t> destinations{0, 4, 1};
    rows.destinations = destinations;
    wrong(rows, "ids[1] goes to place 4");
    rows.destinations = std::span(destinations).first(2);
    wrong(rows, "3 ids came, and 2 destinations");
    rows = right;
    rows.memory_stride_bytes = 99;
    wrong(rows, "rows of 100 bytes");
    rows = right;
    const std::vector<std::uint32_t> table_of{0, 0, 1};
    rows.table_of = table_of;
    wrong(rows, "ids[2] is of table 1, and there are 1 tables");
    rows = right;
    rows.tables = {{.row_bytes = 100}, {.row_bytes = 100}};
    wrong(rows, "table 0 does not say how many rows it has");
    rows = right;
    rows.tables[0].file = 1;
    wrong(rows, "names file 1");
    // Rows that the file lacks are an error of the transfer, which names the first.
    rows = right;
    rows.tables[0].rows = 1000;
    const std::vector<std::uint64_t> past{5, 100, 99};
    rows.ids = past;
    TransferRequest request;
    request.files = {file};
    request.rows = rows;
    const auto error = error_of([&] { return engine().run(request)->wait(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kEndOfFile);
    EXPECT_THAT(error->what(), HasSubstr("row 100"));
}

}  // namespace
}  // namespace penstock::suite
