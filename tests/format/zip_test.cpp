// SPDX-License-Identifier: Apache-2.0
#include "format/zip/zip.hpp"

#include "format/support.hpp"
#include "format/zip/crc32.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

namespace penstock::format::zip {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace test;  // NOLINT(google-build-using-namespace)

// A layout as a file: its payloads are zeros, so that they may be of any size.
class HollowFile final : public ByteSource {
public:
    explicit HollowFile(const FileLayout& file) : file_(file) {}
    [[nodiscard]] std::uint64_t size() const override { return file_.total_bytes(); }
    [[nodiscard]] Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
        std::ranges::fill(into, std::byte{0});
        for (const PieceSlice& s : file_.slices({offset, offset + into.size()})) {
            if (s.kind == Piece::Kind::kLiteral) {
                std::memcpy(into.data() + (s.offset - offset), s.literal, s.bytes);
            }
        }
        return {};
    }

private:
    const FileLayout& file_;
};

Result<std::vector<Record>> read(std::span<const std::byte> file) {
    MemorySource source(file);
    return read_directory(source);
}

struct Archive {
    std::vector<NewRecord> records;
    std::vector<Bytes> payloads;
    Bytes file;
};

Archive random_archive(Random& random) {
    Archive out;
    const std::uint64_t count = below(random, 30);
    for (std::uint64_t i = 0; i < count; ++i) {
        const bool large = below(random, 60) == 0;
        Bytes bytes = random_bytes(random, below(random, large ? 3 * kLargeBytes : 300));
        NewRecord record{fmt::format("archive/data/{}{}", i, std::string(below(random, 90), 'n')),
                         bytes.size(),
                         {}};
        if (below(random, 3) == 0) {
            record.literal = std::string(text_of(bytes));
        }
        out.records.push_back(std::move(record));
        out.payloads.push_back(std::move(bytes));
    }
    auto layout = Layout::make(out.records);
    EXPECT_TRUE(layout) << why(layout);
    for (std::size_t i = 0; i < count; ++i) {
        if (!out.records[i].literal) {
            layout->set_crc(i, crc32(out.payloads[i]));
        }
    }
    std::vector<Bytes> payloads;
    for (std::size_t i = 0; i < count; ++i) {
        if (!out.records[i].literal) {
            payloads.push_back(out.payloads[i]);
        }
    }
    out.file = assemble(layout->file(), payloads, 4096, 1 << below(random, 20));
    return out;
}

TEST(Zip, RandomLayoutsAreReadBackEqualAndAligned) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        SCOPED_TRACE(seed);
        Random random(seed);
        const Archive archive = random_archive(random);
        const auto records = read(archive.file);
        ASSERT_TRUE(records) << why(records);
        ASSERT_EQ(records->size(), archive.records.size());
        MemorySource source(archive.file);
        for (std::size_t i = 0; i < records->size(); ++i) {
            const Record& r = (*records)[i];
            EXPECT_EQ(r.name, archive.records[i].name);
            EXPECT_TRUE(std::ranges::equal(std::span(archive.file).subspan(r.offset, r.bytes),
                                           archive.payloads[i]));
            EXPECT_TRUE(base::is_aligned(
                r.offset, r.bytes >= kLargeBytes ? kLargeAlignment : kSmallAlignment));
            EXPECT_EQ(r.crc, crc32(archive.payloads[i]));
            EXPECT_TRUE(check_crc(source, r));
        }
    }
}

TEST(Zip, PastFourGiBSizesAndOffsetsStandInZip64Fields) {
    constexpr std::uint64_t kFourGiB = std::uint64_t{4} << 30;
    const auto layout = Layout::make({{"a/big", kFourGiB + 1000, {}},
                                      {"a/exact", 0xFFFFFFFF, {}},
                                      {"a/below", 0xFFFFFFFE, {}},
                                      {"a/far", 10, {}}});
    ASSERT_TRUE(layout) << why(layout);
    HollowFile source(layout->file());
    const auto records = read_directory(source);
    ASSERT_TRUE(records) << why(records);
    ASSERT_EQ(records->size(), 4U);
    const std::vector<std::uint64_t> sizes = {kFourGiB + 1000, 0xFFFFFFFF, 0xFFFFFFFE, 10};
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ((*records)[i].bytes, sizes[i]);
        EXPECT_EQ((*records)[i].offset, layout->payload_offset(i));
    }
    EXPECT_GT((*records)[3].offset, 3 * kFourGiB - 10);
}

TEST(Zip, LocalHeadersAreAskedForAllAtOnce) {
    struct Counting final : ByteSource {
        explicit Counting(std::span<const std::byte> file) : memory(file) {}
        [[nodiscard]] std::uint64_t size() const override { return memory.size(); }
        [[nodiscard]] Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
            ++reads;
            return memory.read(offset, into);
        }
        [[nodiscard]] Result<void> read_many(std::span<const ByteRead> many) override {
            asked.push_back(many.size());
            return memory.read_many(many);
        }
        MemorySource memory;
        int reads = 0;
        std::vector<std::size_t> asked;
    };
    std::vector<NewRecord> records;
    for (int i = 0; i < 1000; ++i) {
        records.push_back({fmt::format("a/data/{}", i), 4, "four"});
    }
    const auto layout = Layout::make(std::move(records));
    ASSERT_TRUE(layout) << why(layout);
    const Bytes file = assemble(layout->file(), {});
    Counting source(file);
    const auto found = read_directory(source);
    ASSERT_TRUE(found) << why(found);
    EXPECT_EQ(found->size(), 1000U);
    EXPECT_THAT(source.asked, ElementsAre(1000U));
    EXPECT_LE(source.reads, 4);  // the end, and the directory
}

TEST(Zip, MoreRecordsThanSixteenBitsCount) {
    std::vector<NewRecord> many;
    for (int i = 0; i < 70'000; ++i) {
        many.push_back({fmt::format("a/data/{}", i), 0, {}});
    }
    const auto layout = Layout::make(many);
    ASSERT_TRUE(layout) << why(layout);
    HollowFile source(layout->file());
    const auto records = read_directory(source);
    ASSERT_TRUE(records) << why(records);
    EXPECT_EQ(records->size(), 70'000U);
}

TEST(Zip, SaysWhichCrcsARangeNeeds) {
    auto layout = Layout::make({{"a/data.pkl", 0, std::string("pickle")},
                                {"a/data/0", 3 * kLargeBytes, {}},
                                {"a/data/1", 2 * kLargeBytes, {}}});
    ASSERT_TRUE(layout) << why(layout);
    const std::uint64_t first = layout->payload_offset(1);
    const std::uint64_t second = layout->payload_offset(2);
    const std::uint64_t total = layout->file().total_bytes();
    EXPECT_THAT(layout->crcs_in({0, 4096}), ElementsAre(1U));
    EXPECT_THAT(layout->crcs_in({first, first + 3 * kLargeBytes}), IsEmpty());
    EXPECT_THAT(layout->crcs_in({first, second}), ElementsAre(2U));
    EXPECT_THAT(layout->crcs_in({second, layout->directory_offset()}), IsEmpty());
    EXPECT_THAT(layout->crcs_in({layout->directory_offset(), total}), ElementsAre(1U, 2U));
    EXPECT_TRUE(base::is_aligned(layout->directory_offset(), 4096));
    // A range written before a CRC that it does not hold was set stays as it was.
    const auto bytes = [&](FileRange r) {
        Bytes out(r.end - r.begin);
        const Bytes zeros(3 * kLargeBytes);
        const std::vector<std::span<const std::byte>> payloads(2, zeros);
        layout->file().copy(r, payloads, out);
        return out;
    };
    const Bytes before = bytes({first, second - 4096});
    const Bytes head = bytes({0, first});
    layout->set_crc(1, 0x12345678);
    layout->set_crc(2, 0x9ABCDEF0);
    EXPECT_EQ(bytes({first, second - 4096}), before);
    EXPECT_NE(bytes({0, first}), head);
}

TEST(Zip, WhatCannotBeWrittenIsNamed) {
    EXPECT_THAT(why(Layout::make({{"a", 1, {}}, {"a", 1, {}}})), HasSubstr("'a' comes twice"));
    for (const std::string_view name : {"", "/a", "../a", "a/../b", "a\\b", "\xff"}) {
        EXPECT_THAT(why(Layout::make({{std::string(name), 1, {}}})), HasSubstr("not possible"));
    }
    EXPECT_THAT(why(Layout::make({{"a", ~std::uint64_t{0}, {}}})), HasSubstr("not possible"));
}

TEST(Zip, ADamagedPayloadFailsItsCrcAndZeroMeansUnknown) {
    auto layout = Layout::make({{"a/x", 5000, {}}});
    ASSERT_TRUE(layout) << why(layout);
    Random random(3);
    const std::vector<Bytes> payloads = {random_bytes(random, 5000)};
    layout->set_crc(0, crc32(payloads[0]));
    Bytes file = assemble(layout->file(), payloads);
    file[layout->payload_offset(0) + 777] ^= std::byte{1};
    MemorySource source(file);
    const auto records = read_directory(source);
    ASSERT_TRUE(records) << why(records);
    EXPECT_THAT(why(check_crc(source, (*records)[0])), HasSubstr("record 'a/x'"));
    Record unknown = (*records)[0];
    unknown.crc = 0;
    EXPECT_TRUE(check_crc(source, unknown));
}

// A flip in a payload, in padding or in a CRC leaves the directory as it was; any other is refused
// or gives records within the file that do not overlap.
TEST(Zip, EveryCutIsRefusedAndNoFlippedByteLeadsOutOfTheFile) {
    auto layout = Layout::make({{"a/data.pkl", 0, std::string("some bytes")},
                                {"a/data/0", 40, {}},
                                {"a/version", 0, std::string("3\n")}});
    ASSERT_TRUE(layout) << why(layout);
    layout->set_crc(1, 77);
    const Bytes file = assemble(layout->file(), {Bytes(40)});
    for (std::size_t cut = 0; cut < file.size(); ++cut) {
        EXPECT_FALSE(read(std::span(file).first(cut))) << cut;
    }
    int refused = 0;
    for (std::size_t at = 0; at < file.size(); ++at) {
        for (const int value : kFlips) {
            Bytes damaged = file;
            damaged[at] ^= static_cast<std::byte>(value);
            const auto records = read(damaged);
            if (!records) {
                ++refused;
                continue;
            }
            for (const Record& r : *records) {
                EXPECT_LE(r.offset, file.size());
                EXPECT_LE(r.bytes, file.size() - r.offset);
            }
        }
    }
    EXPECT_GT(refused, 1000);
}

TEST(Zip, ClaimsOfTheEndRecordsAreCheckedBeforeAnythingIsTaken) {
    const auto layout = Layout::make({{"a", 0, std::string("x")}});
    ASSERT_TRUE(layout) << why(layout);
    const Bytes file = assemble(layout->file(), {});
    constexpr std::size_t kZip64End = 22 + 20 + 56;  // bytes from the end of the file
    constexpr std::size_t kLocator = 22 + 20;
    struct Damage {
        std::size_t from_end;
        std::size_t at;  // in the record that begins there
        std::uint8_t to;
        std::string_view says;
    };
    for (const Damage& d :
         {Damage{kZip64End, 24, 2, "several disks"}, Damage{kZip64End, 16, 1, "several disks"},
          Damage{kZip64End, 47, 0x7F, "no more than"}, Damage{kZip64End, 43, 0x01, "does not fit"},
          Damage{kZip64End, 55, 0x7F, "does not fit"}, Damage{kZip64End, 0, 0, "is damaged"},
          Damage{kLocator, 15, 0x7F, "out of place"}, Damage{kLocator, 8, 0, "is damaged"},
          Damage{22, 4, 1, "several disks"}, Damage{22, 20, 1, "no end record"}}) {
        Bytes damaged = file;
        damaged[file.size() - d.from_end + d.at] = static_cast<std::byte>(d.to);
        EXPECT_THAT(why(read(damaged)), HasSubstr(d.says)) << d.from_end << " " << d.at;
    }
    EXPECT_THAT(why(read(Bytes(10))), HasSubstr("has 10 bytes"));
    EXPECT_THAT(why(read(Bytes(100'000))), HasSubstr("no end record"));
}

}  // namespace
}  // namespace penstock::format::zip
