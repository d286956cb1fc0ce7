// SPDX-License-Identifier: Apache-2.0
// Tensors that are put together of others: their bytes, and what is refused.
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/state_file.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace penstock::weights {
namespace {

using support::pattern;
using test::error_of;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

class JoinedTensorsTest : public testing::Test {
protected:
    JoinedTensorsTest() {
        State state;
        for (const auto& [name, elements] : {std::pair{"gate.0", 600U},
                                             {"gate.1", 600U},
                                             {"up.0", 600U},
                                             {"up.1", 600U},
                                             {"odd", 5U}}) {
            data_[name] = pattern(elements * 4, data_.size() + 1);
            state.tensors.push_back({name, "F32", {elements}, data_[name]});
        }
        data_["half"] = pattern(10, 9);
        state.tensors.push_back({"half", "BF16", {5}, data_["half"]});
        save_file(engine_, folder_ / "model.safetensors.index.json", state, {.shard_bytes = 6000});
        table_ = inspect(engine_, folder_ / "model.safetensors.index.json");
    }
    [[nodiscard]] Bytes bytes_of_parts(const std::vector<TensorPart>& parts) const {
        Bytes out;
        for (const TensorPart& part : parts) {
            const auto begin =
                data_.at(part.tensor).begin() + static_cast<std::ptrdiff_t>(part.offset);
            out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(part.bytes));
        }
        return out;
    }
    [[nodiscard]] std::string refusal(const JoinedTensor& joined) {
        const std::size_t before = table_.tensors.size();
        const std::string out = error_of([&] { join_tensors(table_, {&joined, 1}); }).what();
        EXPECT_EQ(table_.tensors.size(), before);
        return out;
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    std::map<std::string, Bytes> data_;
    TensorTable table_;
};

TEST_F(JoinedTensorsTest, AreStreamedAsOneFromWhereTheirPartsAre) {
    const std::vector<TensorPart> parts{
        {"gate.0", 0, 2400}, {"up.0", 0, 2400}, {"gate.1", 0, 2400}, {"up.1", 0, 2400}};
    const std::vector<TensorPart> middle{{"gate.1", 400, 800}, {"odd", 4, 16}};
    const std::vector<JoinedTensor> joined{{"gate_up", {2, 1200}, parts},
                                           {"middle", {204}, middle},
                                           {"second", {1200}, {{"gate_up", 4800, 4800}}}};
    join_tensors(table_, joined);
    const std::vector<WeightUnit> units{{"a", {"gate_up", "odd", "second"}}, {"b", {"middle"}}};
    for (const std::uint64_t budget :
         {std::uint64_t{1'000'000}, least_weight_memory(table_, units)}) {
        WeightStream stream(engine_, table_, units, {.memory_bytes = budget});
        for (int pass = 0; pass < 2; ++pass) {
            const WeightView& a = stream.acquire(0);
            EXPECT_TRUE(std::ranges::equal(a.tensors[0].span(), bytes_of_parts(parts)));
            EXPECT_TRUE(std::ranges::equal(a.tensors[1].span(), data_["odd"]));
            EXPECT_TRUE(std::ranges::equal(
                a.tensors[2].span(), bytes_of_parts({{"gate.1", 0, 2400}, {"up.1", 0, 2400}})));
            // As a loader that copies the parts together gives it.
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.tensors[0].data) % 64, 0U);
            stream.release(0);
            EXPECT_TRUE(
                std::ranges::equal(stream.acquire(1).tensors[0].span(), bytes_of_parts(middle)));
            stream.release(1);
        }
    }
}

TEST_F(JoinedTensorsTest, WrongOnesAreRefusedByName) {
    EXPECT_THAT(refusal({"odd", {5}, {{"odd", 0, 20}}}), HasSubstr("this name already"));
    EXPECT_THAT(refusal({"new", {5}, {{"gate.00", 0, 20}}}),
                testing::AllOf(HasSubstr("'new'"), HasSubstr("did you mean 'gate.0'?")));
    EXPECT_THAT(refusal({"new", {5}, {{"odd", 1, 20}}}),
                HasSubstr("20 bytes from byte 1 on of 'odd', which has 20"));
    EXPECT_THAT(refusal({"new", {5}, {{"odd", ~std::uint64_t{0}, 20}}}), HasSubstr("'odd'"));
    EXPECT_THAT(refusal({"new", {6}, {{"odd", 0, 20}}}), HasSubstr("shape [6]"));
    EXPECT_THAT(refusal({"new", {}, {}}), HasSubstr("0 parts"));
    EXPECT_THAT(refusal({"new", {7}, {{"odd", 0, 20}, {"half", 0, 4}}}),
                HasSubstr("'half' is BF16, and those before it are F32"));
}

}  // namespace
}  // namespace penstock::weights
