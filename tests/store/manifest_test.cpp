// SPDX-License-Identifier: Apache-2.0
#include "store/manifest/manifest.hpp"

#include "base/clock.hpp"
#include "store/support.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <ctime>
#include <variant>

namespace penstock::store {
namespace {

using test::error_of;
using testing::HasSubstr;

std::string hex(std::uint64_t value) {
    return fmt::format("{:016x}", value);
}

std::uint64_t sum_of(std::string_view text) {
    return stream::content_hash(std::as_bytes(std::span(text.data(), text.size())));
}

// With the checksum that its text has.
std::string sealed(std::string text) {
    const std::string sum = hex(sum_of(text));
    return text + ",\"checksum\":\"" + sum + "\"}\n";
}

// Without its checksum, to be changed and sealed again.
std::string opened(const std::string& text) {
    return text.substr(0, text.rfind(",\"checksum\""));
}

Manifest small() {
    Manifest m;
    m.generation = 7;
    m.step = 1000;
    m.saved_unix_ns = 1'700'000'000'123'456'789;
    m.written_bytes = 96;
    m.folders = {"", "/mnt/second/00000007-step-1000.1a2b"};
    m.shards = {{"shard-00001.safetensors", 0, std::string(32, 'a'), 6, 4096 + 600'000, 4096, 11},
                {"shard-00002.safetensors", 1, std::string(32, 'b'), 7, 4096 + 96, 4096, 12}};
    m.tensors.push_back(
        {"w", "F32", {150'000}, {{{150'000}, {0}, 0, 4096, 600'000, 6, {1, 2, 3}}}});
    Tensor global{"g", "BF16", {4, 12}, {}};
    global.slices.push_back({{4, 6}, {0, 0}, 1, 4096, 48, 7, {~std::uint64_t{0}}});
    global.slices.push_back({{4, 6}, {0, 6}, 1, 4144, 48, 3, {5}});
    m.tensors.push_back(std::move(global));
    m.tensors.push_back({"empty", "U8", {0}, {{{0}, {0}, 1, 4192, 0, 7, {}}}});
    m.structure = "{\"a\": [1, \"\\u00e9\"]}";
    m.metadata = {{"host", "a\nb"}, {"", "\xC3\xA9"},     {"none", std::monostate()},
                  {"flag", true},   {"large", INT64_MAX}, {"least", INT64_MIN},
                  {"loss", 0.1},    {"whole", 1.0},       {"far", 1e300},
                  {"zero", -0.0},   {"inf", -HUGE_VAL}};
    return m;
}

void expect_equal(const Manifest& a, const Manifest& b) {
    EXPECT_EQ(a.generation, b.generation);
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(a.saved_unix_ns, b.saved_unix_ns);
    EXPECT_EQ(a.world, b.world);
    EXPECT_EQ(a.written_bytes, b.written_bytes);
    EXPECT_EQ(a.folders, b.folders);
    EXPECT_EQ(a.structure, b.structure);
    EXPECT_EQ(a.metadata, b.metadata);
    ASSERT_EQ(a.shards.size(), b.shards.size());
    for (std::size_t i = 0; i < a.shards.size(); ++i) {
        const Shard& s = a.shards[i];
        const Shard& t = b.shards[i];
        EXPECT_EQ(
            std::tie(s.file, s.folder, s.id, s.generation, s.bytes, s.header_bytes, s.header_sum),
            std::tie(t.file, t.folder, t.id, t.generation, t.bytes, t.header_bytes, t.header_sum));
    }
    ASSERT_EQ(a.tensors.size(), b.tensors.size());
    for (std::size_t i = 0; i < a.tensors.size(); ++i) {
        const Tensor& t = a.tensors[i];
        const Tensor& u = b.tensors[i];
        EXPECT_EQ(std::tie(t.name, t.dtype, t.shape), std::tie(u.name, u.dtype, u.shape));
        ASSERT_EQ(t.slices.size(), u.slices.size());
        for (std::size_t k = 0; k < t.slices.size(); ++k) {
            const Slice& x = t.slices[k];
            const Slice& y = u.slices[k];
            EXPECT_EQ(std::tie(x.shape, x.offset, x.shard, x.begin, x.bytes, x.changed, x.sums),
                      std::tie(y.shape, y.offset, y.shard, y.begin, y.bytes, y.changed, y.sums));
        }
    }
}

TEST(Manifest, ComesBackAsItWas) {
    const Manifest m = small();
    const std::string text = render(m);
    expect_equal(m, parse_manifest(text, "m"));
    EXPECT_EQ(render(parse_manifest(text, "m")), text);
    expect_equal(Manifest(), parse_manifest(render(Manifest()), "m"));
}

TEST(Manifest, MetadataKeepsTheKindsOfItsValues) {
    Manifest m;
    m.metadata = {{"nan", std::nan("")}, {"one", 1.0}, {"two", 2}, {"text", "3"}};
    const Manifest read = parse_manifest(render(m), "m");
    EXPECT_TRUE(std::isnan(std::get<double>(read.metadata[0].second)));
    EXPECT_EQ(std::get<double>(read.metadata[1].second), 1.0);
    EXPECT_EQ(std::get<std::int64_t>(read.metadata[2].second), 2);
    EXPECT_EQ(std::get<std::string>(read.metadata[3].second), "3");
}

TEST(Manifest, EndsInTheChecksumOfAllBeforeIt) {
    const std::string text = render(small());
    EXPECT_EQ(text, sealed(opened(text)));
    EXPECT_TRUE(text.starts_with("{\"penstock_checkpoint\":1,"));
}

TEST(Manifest, EveryFlippedByteAndEveryCutIsSeen) {
    const std::string text = render(small());
    for (std::size_t at = 0; at < text.size(); ++at) {
        for (const int flip : format::test::kFlips) {
            std::string changed = text;
            changed[at] = static_cast<char>(changed[at] ^ flip);
            EXPECT_EQ(error_of([&] { (void)parse_manifest(changed, "m"); }).reason(),
                      ErrorCode::kDamaged)
                << "byte " << at << " by " << flip;
        }
        EXPECT_EQ(error_of([&] { (void)parse_manifest(text.substr(0, at), "m"); }).reason(),
                  ErrorCode::kDamaged);
    }
    EXPECT_EQ(error_of([&] { (void)parse_manifest(text + "\n", "m"); }).reason(),
              ErrorCode::kDamaged);
}

// A right checksum does not make impossible numbers valid.
TEST(Manifest, ImpossibleNumbersAreRefused) {
    const std::pair<std::function<void(Manifest&)>, std::string> cases[] = {
        {[](Manifest& m) { m.world = 0; }, "no process"},
        {[](Manifest& m) { m.folders[1] = "relative"; }, "absolute"},
        {[](Manifest& m) { m.folders[0] = "/x"; }, "absolute"},
        {[](Manifest& m) { m.shards[0].file = "../shard"; }, "no name of a file"},
        {[](Manifest& m) { m.shards[0].file = "a/b"; }, "no name of a file"},
        {[](Manifest& m) { m.shards[0].file = ".hidden"; }, "no name of a file"},
        {[](Manifest& m) { m.shards[0].file = ".."; }, "no name of a file"},
        {[](Manifest& m) { m.shards[0].file = ""; }, "no name of a file"},
        {[](Manifest& m) { m.shards[0].file = std::string("a\0b", 3); }, "no name of a file"},
        {[](Manifest& m) { m.shards[0].file = std::string(256, 'a'); }, "no name of a file"},
        {[](Manifest& m) { m.shards[0].file = "manifest.json"; }, "comes twice"},
        {[](Manifest& m) { m.shards[0].file = m.shards[1].file; }, "comes twice"},
        {[](Manifest& m) { m.shards[0].id = m.shards[1].id; }, "comes twice"},
        {[](Manifest& m) { m.shards[0].id = std::string(32, 'G'); }, "32 hexadecimal"},
        {[](Manifest& m) { m.shards[0].id = "a"; }, "32 hexadecimal"},
        {[](Manifest& m) { m.shards[0].folder = 2; }, "not named"},
        {[](Manifest& m) { m.shards[0].generation = 8; }, "later generation"},
        {[](Manifest& m) { m.shards[0].header_bytes = 7; }, "cannot have"},
        {[](Manifest& m) { m.shards[0].bytes = ~std::uint64_t{0}; }, "cannot have"},
        {[](Manifest& m) { m.shards[0].bytes += 1; }, "end at byte"},
        {[](Manifest& m) { m.shards[1].bytes -= 1; }, "which has 4191"},
        {[](Manifest& m) { m.tensors[0].dtype = "F33"; }, "unknown"},
        {[](Manifest& m) { m.tensors[0].shape = {~std::uint64_t{0}}; }, "whole number"},
        {[](Manifest& m) { m.tensors[0].shape.assign(65, 1); }, "dimensions"},
        {[](Manifest& m) { m.tensors[0].slices.clear(); }, "no slice"},
        {[](Manifest& m) { m.tensors[0].slices[0].shard = 2; }, "there are 2"},
        {[](Manifest& m) { m.tensors[0].slices[0].begin = 4095; }, "at bytes 4095"},
        {[](Manifest& m) { m.tensors[0].slices[0].begin = ~std::uint64_t{0}; }, "which has"},
        {[](Manifest& m) { m.tensors[0].slices[0].bytes = 599'999; }, "its shape needs"},
        {[](Manifest& m) { m.tensors[0].slices[0].changed = 8; }, "later generation"},
        {[](Manifest& m) { m.tensors[0].slices[0].sums.pop_back(); }, "2 checksums and 3"},
        {[](Manifest& m) { m.tensors[0].slices[0].sums.push_back(4); }, "4 checksums and 3"},
        {[](Manifest& m) { m.tensors[1].slices[1].offset[1] = 7; }, "reaches past"},
        {[](Manifest& m) { m.tensors[1].slices[1].offset[1] = ~std::uint64_t{0}; }, "reaches past"},
        {[](Manifest& m) { m.tensors[1].slices[1].offset[1] = 5; }, "overlap"},
        {[](Manifest& m) { m.tensors[1].slices[1].offset = {0}; }, "number of dimensions"},
        {[](Manifest& m) { m.tensors[1].slices[1].begin = 4143; }, "overlap at byte 4144"},
        {[](Manifest& m) { m.tensors[1].slices[0].begin = 4097; }, "leave a hole at byte 4096"},
    };
    for (const auto& [change, why] : cases) {
        Manifest m = small();
        change(m);
        const Error error = error_of([&, &m = m] { (void)render(m); });
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument) << why;
        EXPECT_THAT(error.what(), HasSubstr(why));
    }
}

TEST(Manifest, HostileTextIsRefused) {
    const std::string good = opened(render(small()));
    const auto swapped = [&good](const std::string& from, const std::string& to) {
        std::string text = good;
        const std::size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        return text.replace(at, from.size(), to);
    };
    (void)parse_manifest(sealed(good), "m");
    const std::pair<std::string, std::string> cases[] = {
        {"", "checksum"},
        {"[1", "it is a list"},
        {"{\"step\":x", "not JSON"},
        {"{\"penstock_checkpoint\":1", "missing"},
        {swapped("checkpoint\":1", "checkpoint\":2"), "a later Penstock wrote it"},
        {swapped("chunk_bytes\":262144", "chunk_bytes\":4096"), "form"},
        {swapped("\"generation\":7", "\"generation\":-7"), "form"},
        {swapped("\"generation\":7", "\"generation\":7.5"), "form"},
        {swapped("\"generation\":7", "\"generation\":[7]"), "form"},
        {swapped("\"generation\":7", "\"generation\":{}"), "form"},
        {swapped("\"generation\":7", "\"generation\":7,\"generation\":8"), "comes twice"},
        {swapped("\"world\":1", "\"world\":4294967296"), "form"},
        {swapped("\"step\"", "\"steps\""), "does not know"},
        {swapped("1700000000123456789", "9223372036854775808"), "form"},
        {swapped("\"w\":[", "\"w\":[[],"), "'w'"},
        {swapped("\"w\":[", "\"g\":["), "comes twice"},
        {swapped("[150000]", "150000"), "'w'"},
        {swapped("[150000]", "[[150000]]"), "'w'"},
        {swapped("[150000]", "[150000],[],[]"), "'w'"},
        {swapped("[0,4096,", "[0,[],4096,"), "'w'"},
        {swapped("0000000000000001", "000000000000000"), "'w'"},
        {swapped("0000000000000001", "000000000000000g"), "'w'"},
        {swapped("[4,6],[0,0]", "[4,6]"), "'g'"},
        {swapped("[4,6],[0,0]", "[4,6],[0,0],[0,0]"), "'g'"},
        {swapped("[4,6],[0,0]", "[4,[6]],[0,0]"), "'g'"},
        {swapped("\"shard-00001.safetensors\",", ""), "shards"},
        {swapped("\"folders\":[", "\"folders\":[["), ""},
        {swapped("\"host\":\"a\\u000ab\"", "\"host\":[]"), "metadata"},
        {swapped("\"host\":\"a\\u000ab\"", "\"host\":[1]"), "metadata"},
        {swapped("\"host\":\"a\\u000ab\"", "\"host\":[\"nil\"]"), "metadata"},
        {swapped("\"host\":\"a\\u000ab\"", "\"host\":[\"nan\",\"nan\"]"), "metadata"},
        {swapped("\"host\":\"a\\u000ab\"", "\"host\":9223372036854775808"), "metadata"},
        {swapped("\"metadata\":{", "\"metadata\":1,\"more\":{"), "metadata"},
        {swapped("\"metadata\":{", "\"metadata\":[{"), ""},
        {good + ",\"more\":" + std::string(100'000, '['), ""},
    };
    for (const auto& [text, why] : cases) {
        const Error error = error_of([&, &t = text] { (void)parse_manifest(sealed(t), "m.json"); });
        EXPECT_EQ(error.reason(), ErrorCode::kDamaged) << text.substr(0, 200);
        EXPECT_THAT(error.what(), HasSubstr(why)) << text.substr(0, 200);
        EXPECT_EQ(error.path(), "m.json");
    }
}

Manifest grid(std::uint64_t rows, std::uint64_t columns) {
    Manifest m;
    m.shards = {{"s", 0, std::string(32, '0'), 0, 8 + rows * columns, 8, 0}};
    Tensor t{"t", "U8", {rows, columns}, {}};
    for (std::uint64_t r = 0; r < rows; ++r) {
        for (std::uint64_t c = 0; c < columns; ++c) {
            t.slices.push_back({{1, 1}, {r, c}, 0, 8 + r * columns + c, 1, 0, {}});
        }
    }
    m.tensors.push_back(std::move(t));
    return m;
}

TEST(Manifest, SlicesOfAnyGridKeepApart) {
    Manifest m = grid(200, 300);
    (void)render(m);
    std::swap(m.tensors[0].slices[17], m.tensors[0].slices[50'000]);
    (void)render(m);
    m.tensors[0].slices[100].offset = m.tensors[0].slices[59'999].offset;
    EXPECT_THAT(error_of([&] { (void)render(m); }).what(), HasSubstr("overlap"));
}

// Four boxes around a fifth: no plane parts them.
TEST(Manifest, SlicesThatNoPlanePartsKeepApartToo) {
    Manifest m;
    m.shards = {{"s", 0, std::string(32, '0'), 0, 8 + 9, 8, 0}};
    m.tensors = {{"t",
                  "U8",
                  {3, 3},
                  {{{1, 2}, {0, 0}, 0, 8, 2, 0, {}},
                   {{2, 1}, {0, 2}, 0, 10, 2, 0, {}},
                   {{1, 2}, {2, 1}, 0, 12, 2, 0, {}},
                   {{2, 1}, {1, 0}, 0, 14, 2, 0, {}},
                   {{1, 1}, {1, 1}, 0, 16, 1, 0, {}}}}};
    (void)render(m);
    m.tensors[0].slices[4].offset = {1, 0};
    EXPECT_THAT(error_of([&] { (void)render(m); }).what(), HasSubstr("overlap"));
}

// A hundred thousand boxes that are all tangled must not cost their square.
TEST(Manifest, TangledSlicesAreRefusedInTime) {
    constexpr std::uint64_t kCount = 20'000;
    Manifest m;
    Tensor t{"t", "U8", {2 * kCount + 2, 2 * kCount + 2}, {}};
    std::uint64_t at = 8;
    for (std::uint64_t i = 0; i < kCount; ++i) {  // steps that interlock, in both dimensions
        t.slices.push_back({{1, 2}, {i, i == 0 ? 0 : 2 * i - 1}, 0, at, 2, 0, {}});
        at += 2;
    }
    for (std::uint64_t i = 0; i < kCount; ++i) {
        t.slices.push_back({{2, 1}, {kCount + i, 2 * (kCount - i)}, 0, at, 2, 0, {}});
        at += 2;
    }
    m.shards = {{"s", 0, std::string(32, '0'), 0, at, 8, 0}};
    m.tensors.push_back(std::move(t));
    const base::SteadyClock clock;
    const base::Nanos begin = clock.now();
    try {
        (void)render(m);
    } catch (const Error&) {
        // either answer will do
    }
    EXPECT_LT(clock.now() - begin, 10'000'000'000);
}

TEST(Manifest, WhatIsWrittenTwiceOrIsNoTextIsRefused) {
    Manifest m = small();
    m.metadata.emplace_back("host", "again");
    EXPECT_THAT(error_of([&] { (void)render(m); }).what(), HasSubstr("'host' comes twice"));
    m = small();
    m.tensors[1].name = "w";
    EXPECT_THAT(error_of([&] { (void)render(m); }).what(), HasSubstr("'w' comes twice"));
    m = small();
    m.tensors[1].name = "\xFF";
    EXPECT_THAT(error_of([&] { (void)render(m); }).what(), HasSubstr("not UTF-8"));
    m = small();
    m.structure = "\xFF";
    EXPECT_THAT(error_of([&] { (void)render(m); }).what(), HasSubstr("not UTF-8"));
}

TEST(Manifest, ManyTensorsTakeNoTimeTimed) {
    constexpr std::uint64_t kCount = 65536;
    constexpr std::uint64_t kBytes = 16384;
    Manifest m;
    m.generation = 12;
    constexpr std::uint64_t kEach = kCount / 4;
    for (std::uint32_t s = 0; s < 4; ++s) {
        m.shards.push_back({fmt::format("shard-{:05}.safetensors", s), 0, fmt::format("{:032x}", s),
                            12, 8 + kEach * kBytes, 8, 0});
    }
    for (std::uint64_t i = 0; i < kCount; ++i) {
        m.tensors.push_back({fmt::format("layers.{}.attention.weight", i),
                             "F32",
                             {64, 64},
                             {{{64, 64},
                               {0, 0},
                               static_cast<std::uint32_t>(i / kEach),
                               8 + i % kEach * kBytes,
                               kBytes,
                               12,
                               {i * 0x9E3779B97F4A7C15U}}}});
    }
    // The time of this process on a processor: others may have both.
    const auto seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
    const double begin = seconds();
    const std::string text = render(m);
    const Manifest read = parse_manifest(text, "m");
    EXPECT_EQ(read.tensors.size(), kCount);
    RecordProperty("bytes", static_cast<int>(text.size()));
    EXPECT_LT(seconds() - begin, 3);  // 0.2 without sanitizers
}

}  // namespace
}  // namespace penstock::store
