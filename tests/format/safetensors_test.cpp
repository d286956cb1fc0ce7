// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors.hpp"

#include "format/shard_index.hpp"
#include "format/support.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>

namespace penstock::format::safetensors {
namespace {

using ::testing::HasSubstr;
using namespace test;  // NOLINT(google-build-using-namespace)
using tensor::ElementType;

Bytes file_of(std::string_view json, std::size_t data_bytes = 0) {
    Bytes out(8 + json.size() + data_bytes);
    const std::uint64_t n = json.size();
    std::memcpy(out.data(), &n, 8);
    std::memcpy(out.data() + 8, json.data(), json.size());
    return out;
}

Result<Header> read(const Bytes& file) {
    return read_header(file, file.size());
}

std::vector<Tensor> random_tensors(Random& random) {
    std::vector<Tensor> out(below(random, 40));
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i].name = fmt::format("{}layer\"{}\\\n\u00e9", i, below(random, 1000));
        do {
            out[i].type = static_cast<ElementType>(below(random, tensor::kElementTypes.size()));
        } while (safetensors::name_of(out[i].type).empty());
        const std::uint64_t rank = below(random, 4);
        for (std::uint64_t d = 0; d < rank; ++d) {
            out[i].shape.push_back(below(random, 8) == 0 ? 0 : 4 * (1 + below(random, 12)));
        }
        if (!safetensors::bytes_of(out[i].type, out[i].shape)) {
            out[i].shape.assign({4});  // what has fewer than 8 bits comes in fours
        }
        if (below(random, 200) == 0) {
            out[i].type = ElementType::kF32;
            out[i].shape.assign({256, 1024});
        }
    }
    return out;
}

TEST(Safetensors, RandomLayoutsAreReadBackEqual) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(seed);
        Random random(seed);
        const std::vector<Tensor> tensors = random_tensors(random);
        const Metadata metadata = {{"format", "pt"}, {"by \"whom\"", "\t\u20ac"}};
        auto layout = Layout::make(tensors, metadata);
        ASSERT_TRUE(layout) << why(layout);
        std::vector<Bytes> payloads;
        for (const Tensor& t : layout->tensors()) {
            payloads.push_back(random_bytes(random, t.end - t.begin));
        }
        const Bytes file = assemble(layout->file(), payloads, 4096, 1 << below(random, 20));
        const auto header = read(file);
        ASSERT_TRUE(header) << why(header);
        EXPECT_EQ(header->metadata, metadata);
        ASSERT_EQ(header->tensors.size(), tensors.size());
        for (const Tensor& t : header->tensors) {
            const auto i = static_cast<std::size_t>(
                std::find_if(tensors.begin(), tensors.end(),
                             [&](const Tensor& other) { return other.name == t.name; }) -
                tensors.begin());
            ASSERT_LT(i, tensors.size());
            EXPECT_EQ(t.type, tensors[i].type);
            EXPECT_EQ(t.shape, tensors[i].shape);
            const auto data =
                std::span(file).subspan(header->data_begin + t.begin, t.end - t.begin);
            EXPECT_TRUE(std::ranges::equal(data, payloads[i]));
        }
    }
}

TEST(Safetensors, DataAndTensorsAreAlignedAsFarAsTheirSizesAllow) {
    std::vector<Tensor> tensors = {
        {"odd", ElementType::kU8, {3}},       {"scalar", ElementType::kF32, {}},
        {"row", ElementType::kBF16, {32}},    {"weight", ElementType::kBF16, {1024, 1024}},
        {"empty", ElementType::kF64, {0, 7}}, {"page", ElementType::kF32, {3, 1024}}};
    const auto layout = Layout::make(tensors);
    ASSERT_TRUE(layout) << why(layout);
    EXPECT_TRUE(base::is_aligned(layout->data_begin(), 4096));
    for (const Tensor& t : layout->tensors()) {
        const std::uint64_t size = t.end - t.begin;
        const std::uint64_t power = size == 0 ? 4096 : size & (~size + 1);
        EXPECT_TRUE(
            base::is_aligned(layout->data_begin() + t.begin, std::min<std::uint64_t>(power, 4096)))
            << t.name;
    }
    tensors.resize(3);
    const auto small = Layout::make(tensors);
    ASSERT_TRUE(small) << why(small);
    EXPECT_TRUE(base::is_aligned(small->data_begin(), 64));
    EXPECT_LT(small->data_begin(), 512U);
}

TEST(Safetensors, MetadataKnownLaterTakesTheReserveAndMovesNothing) {
    auto layout = Layout::make({{"a", ElementType::kU8, {5}}}, {}, {.reserve_bytes = 100});
    ASSERT_TRUE(layout) << why(layout);
    const std::uint64_t begin = layout->data_begin();
    ASSERT_TRUE(layout->set_metadata({{"sum", std::string(60, '7')}}));
    EXPECT_EQ(layout->data_begin(), begin);
    const auto header = read(assemble(layout->file(), {Bytes(5)}));
    ASSERT_TRUE(header) << why(header);
    EXPECT_EQ(header->metadata.at(0).second, std::string(60, '7'));
    EXPECT_THAT(why(layout->set_metadata({{"sum", std::string(600, '7')}})), HasSubstr("reserve"));
}

// Others copy the metadata of a file when they write it again, and round its header up to 8 bytes.
TEST(Safetensors, AHeaderThatALayoutWroteIsKnown) {
    for (std::size_t bytes = 1; bytes < 80; ++bytes) {
        const Metadata metadata = {{"sum", std::string(bytes, '7')}, {"b", "\n\xc3\xa9"}};
        const auto layout = Layout::make(
            {{"a", ElementType::kF32, {5}}, {"empty", ElementType::kU8, {0}}}, metadata);
        ASSERT_TRUE(layout) << why(layout);
        const Bytes file = assemble(layout->file(), {Bytes(20), Bytes()});
        const auto header = read(file);
        ASSERT_TRUE(header) << why(header);
        EXPECT_TRUE(header->is_of_layout);
        const std::string_view text = text_of(file);
        std::string json(text.substr(8, text.rfind('}') - 7));
        for (const auto& [wanted, other] :
             {std::pair{true, json + std::string(8, ' ')},
              std::pair{false, json + std::string(7, ' ')}, std::pair{false, json},
              std::pair{false, " " + json + std::string(8, ' ')},
              std::pair{false, json + "\n" + std::string(8, ' ')}}) {
            const auto again = parse_header(test::bytes_of(other), 8 + other.size() + 20);
            ASSERT_TRUE(again) << why(again);
            EXPECT_EQ(again->is_of_layout, wanted);
        }
    }
}

TEST(Safetensors, WhatCannotBeWrittenIsNamed) {
    const auto error = [](std::vector<Tensor> tensors) {
        return why(Layout::make(std::move(tensors)));
    };
    EXPECT_THAT(error({{"a", ElementType::kU8, {}}, {"a", ElementType::kU8, {}}}),
                HasSubstr("'a' comes twice"));
    EXPECT_THAT(error({{"__metadata__", ElementType::kU8, {}}}), HasSubstr("not allow this name"));
    EXPECT_THAT(error({{"\xff", ElementType::kU8, {}}}), HasSubstr("'\\xff'"));
    EXPECT_THAT(error({{"c", ElementType::kC128, {}}}), HasSubstr("no name for its type"));
    EXPECT_THAT(error({{"c", ElementType::kF4E2M1, {1}}}), HasSubstr("not a possible size"));
    EXPECT_THAT(error({{"c", ElementType::kU8, {1ULL << 40, 1ULL << 40}}}),
                HasSubstr("not a possible size"));
}

TEST(Safetensors, HostileHeadersAreRefusedAndSayWhy) {
    struct Case {
        std::string json;
        std::size_t data_bytes;
        std::string says;
    };
    const auto one = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
    const std::string deep(100, '[');
    const std::vector<Case> cases = {
        {"[]", 0, "does not begin with '{'"},
        {"{ ", 0, "not JSON"},
        {"{}x", 0, "not JSON"},
        {"{\"a\":1}", 0, "tensor 'a': it is not an object"},
        {one(""), 0, "lacks one of"},
        {one(R"("dtype":"U8","shape":[],"data_offsets":[0,1])") + " ", 0, "cut short"},
        {one(R"("dtype":"U8","shape":[],"data_offsets":[0,1])"), 2, "belongs to no tensor"},
        {one(R"("dtype":"U9","shape":[],"data_offsets":[0,1])"), 1, "type 'U9' is unknown"},
        {one(R"("dtype":"U8","shape":[2],"data_offsets":[0,1])"), 1, "needs 2 bytes"},
        {one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1, "wrong form"},
        {one(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])"), 1, "wrong form"},
        {one(R"("dtype":"U8","shape":[1,[1]],"data_offsets":[0,1])"), 1, "wrong form"},
        {one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 1, "more than two"},
        {one(R"("dtype":"U8","shape":[1],"data_offsets":[1])"), 1, "lacks one of"},
        {one(R"("dtype":"U8","shape":[1],"data_offsets":[2,1])"), 1, "needs 1 bytes"},
        {one(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), 2, "a hole"},
        {one(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), 1, "whole number"},
        {one(R"("dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1])"), 1,
         "'dtype' comes twice"},
        {one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
         "whole number"},
        {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
         R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
         3, "an overlap"},
        {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
         R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
         2, "'a' comes twice"},
        {R"({"__metadata__":{"a":1}})", 0, "metadata 'a' is not a string"},
        {R"({"__metadata__":{"a":["b"]}})", 0, "metadata 'a' is not a string"},
        {R"({"__metadata__":[]})", 0, "list"},
        {"{\"\xff\":1}", 0, "not JSON"},
        {R"({"a":{"x":)" + deep, 0, "nested deeper"},
        {R"({"a":{"x":)" + std::string(100'000, '['), 0, "nested deeper"},
        {one(R"("dtype":"U8","shape":[184467440737095516160],"data_offsets":[0,1])"), 1,
         "wrong form"},
    };
    for (const Case& c : cases) {
        EXPECT_THAT(why(read(file_of(c.json, c.data_bytes))), HasSubstr(c.says)) << c.json;
    }
    Bytes huge = file_of("{}");
    huge[7] = std::byte{0x7f};
    EXPECT_THAT(why(read(huge)), HasSubstr("not a safetensors file"));
    EXPECT_THAT(why(read(Bytes(7))), HasSubstr("has 7 bytes"));
}

TEST(Safetensors, TakesWhatTheReferenceTakes) {
    for (
        const std::string_view json :
        {R"({})", R"({}   )", R"({"__metadata__":null})", R"({"__metadata__":{}})",
         R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"more":{"x":[1,{"y":null}]}}})"}) {
        EXPECT_TRUE(read(file_of(json))) << why(read(file_of(json)));
    }
}

// A damaged byte may fall into a name, a text of the metadata or a payload; never beyond bounds.
TEST(Safetensors, EveryCutAndEveryFlippedByteIsAnErrorOrAFileThatTiles) {
    const auto layout = Layout::make({{"a", ElementType::kF32, {3}}, {"b", ElementType::kU8, {5}}},
                                     {{"format", "pt"}});
    ASSERT_TRUE(layout) << why(layout);
    const Bytes file = assemble(layout->file(), {Bytes(12), Bytes(5)});
    for (std::size_t cut = 0; cut < file.size(); ++cut) {
        EXPECT_FALSE(read(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(cut))));
    }
    for (std::size_t at = 0; at < file.size(); ++at) {
        for (const int value : kFlips) {
            Bytes damaged = file;
            damaged[at] ^= static_cast<std::byte>(value);
            const auto header = read(damaged);
            if (header) {
                std::uint64_t end = 0;
                for (const Tensor& t : header->tensors) {
                    EXPECT_EQ(t.begin, end);
                    end = t.end;
                }
                EXPECT_EQ(header->data_begin + end, file.size());
            }
        }
    }
}

TEST(ShardIndex, IsReadAsItWasWritten) {
    const ShardIndex index{.total_bytes = 12345,
                           .mark = "0123456789abcdef",
                           .weight_map = {{"a\"b", shard_name("model", "", 1, 2)},
                                          {"c", shard_name("model", "", 2, 2)}}};
    EXPECT_EQ(index.weight_map[1].second, "model-00002-of-00002.safetensors");
    const auto text = render_shard_index(index);
    ASSERT_TRUE(text) << why(text);
    const auto back = parse_shard_index(*text);
    ASSERT_TRUE(back) << why(back);
    EXPECT_EQ(back->total_bytes, index.total_bytes);
    EXPECT_EQ(back->mark, index.mark);
    EXPECT_EQ(back->weight_map, index.weight_map);
    const auto empty = parse_shard_index(*render_shard_index({}));
    ASSERT_TRUE(empty) << why(empty);
    EXPECT_FALSE(empty->total_bytes);
}

TEST(ShardIndex, TakesOthersAndRefusesWhatLeadsElsewhere) {
    const auto real = parse_shard_index(
        R"({"metadata":{"total_size":2.0e9,"more":{"x":[1]}},"weight_map":{"a":"b.safetensors"}})");
    ASSERT_TRUE(real) << why(real);
    EXPECT_EQ(real->total_bytes, 2'000'000'000U);
    struct Case {
        std::string_view json;
        std::string_view says;
    };
    for (const Case& c :
         {Case{R"({"weight_map":{"a":"../b"}})", "own folder"},
          Case{R"({"weight_map":{"a":"/etc/b"}})", "own folder"},
          Case{R"({"weight_map":{"a":""}})", "own folder"},
          Case{R"({"weight_map":{"a":"b\u0000c"}})", "own folder"},
          Case{R"({"weight_map":{"a":1}})", "own folder"},
          Case{R"({"weight_map":{"a":"b","a":"c"}})", "comes twice"},
          Case{R"({"weight_map":["a"]})", "not an object"},
          Case{R"({"weight_map":{"a":{}}})", "not an object"},
          Case{R"({"weight_map":7})", "not an object"}, Case{R"({"metadata":{}})", "no weight_map"},
          Case{"[]", "does not begin as"}, Case{"7", "does not begin as"},
          Case{"PK\3\4", "does not begin as"}}) {
        const auto refused = parse_shard_index(c.json);
        EXPECT_THAT(why(refused), HasSubstr(c.says)) << c.json;
        // Nothing is wrong with the bytes of most: they are no index, or one that is not read.
        EXPECT_EQ(refused.error().code == ErrorCode::kUnsupported, c.says != "comes twice");
    }
    EXPECT_THAT(
        why(render_shard_index({.total_bytes = 1, .mark = {}, .weight_map = {{"a", "../b"}}})),
        HasSubstr("same folder"));
}

TEST(FileLayout, RangesTileTheFileAtBlocksAndSlicesTileARange) {
    Random random(7);
    for (int round = 0; round < 200; ++round) {
        FileLayout file;
        std::vector<Bytes> payloads;
        Bytes expected;
        const auto grow = [&](const Bytes& more) {
            expected.insert(expected.end(), more.begin(), more.end());
        };
        for (std::uint64_t piece = 0; piece < 1 + below(random, 30); ++piece) {
            const Bytes bytes = random_bytes(random, below(random, 9000));
            if (below(random, 3) == 0) {
                file.literal(text_of(bytes));
                grow(bytes);
            } else if (below(random, 4) == 0) {
                file.zeros(bytes.size());
                grow(Bytes(bytes.size()));
            } else {
                file.payload(payloads.size(), bytes.size());
                payloads.push_back(bytes);
                grow(bytes);
            }
        }
        EXPECT_EQ(assemble(file, payloads, 512, below(random, 20000)), expected);
    }
}

}  // namespace
}  // namespace penstock::format::safetensors
