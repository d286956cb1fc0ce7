// SPDX-License-Identifier: Apache-2.0
// Experts found in the names of tensors, how many of them a token uses, and what a plan makes of
// that.
#include "base/align.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace penstock::weights {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::uint64_t kLayers = 12;
constexpr std::uint64_t kExperts = 8;

class Table {
public:
    void add(const std::string& name, std::vector<std::uint64_t> shape) {
        const std::uint64_t bytes =
            2 * std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
        table.tensors.push_back({.name = name,
                                 .dtype = "BF16",
                                 .shape = std::move(shape),
                                 .strides = {},
                                 .bytes = bytes,
                                 .stretches = {{0, end_, bytes}},
                                 .checksum = ChecksumKind::kNone});
        end_ += bytes;
    }
    Table() {
        table.path = "model";
        table.files = {"model/model.safetensors"};
    }
    TensorTable table;

private:
    std::uint64_t end_ = 4096;
};

// A head of 8 MiB, layers of 4 MiB of attention and 8 experts of 6 MiB.
TensorTable mixture(bool joined) {
    Table out;
    out.add("lm_head.weight", {4096, 1024});
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
        const std::string name = fmt::format("model.layers.{}.", layer);
        out.add(name + "self_attn.qkv.weight", {2048, 1024});
        out.add(name + "mlp.gate.weight", {kExperts, 1024});
        if (joined) {
            out.add(name + "mlp.experts.gate_up_proj", {kExperts, 2048, 1024});
            out.add(name + "mlp.experts.down_proj", {kExperts, 1024, 1024});
            continue;
        }
        for (std::uint64_t number = 0; number < kExperts; ++number) {
            const std::string expert = fmt::format("{}mlp.experts.{}.", name, number);
            out.add(expert + "up.weight", {2048, 1024});
            out.add(expert + "down.weight", {1024, 1024});
        }
    }
    return out.table;
}

TEST(NameExperts, OneByOneAndJoined) {
    for (const bool joined : {false, true}) {
        const std::vector<ExpertLayer> layers = find_expert_layers(mixture(joined));
        ASSERT_THAT(layers, SizeIs(kLayers));
        EXPECT_EQ(layers[0].name, "model.layers.0.mlp.experts");
        EXPECT_EQ(layers[9].name, "model.layers.9.mlp.experts");
        EXPECT_EQ(layers[11].name, "model.layers.11.mlp.experts");
        for (const ExpertLayer& layer : layers) {
            ASSERT_THAT(layer.experts, SizeIs(kExperts));
            for (const std::vector<TensorPart>& expert : layer.experts) {
                ASSERT_THAT(expert, SizeIs(2));
                EXPECT_EQ(expert[0].bytes, 4 * base::kMiB);
                EXPECT_EQ(expert[1].bytes, 2 * base::kMiB);
            }
        }
        EXPECT_EQ(layers[0].experts[3][1].offset, joined ? 6 * base::kMiB : 0);
        EXPECT_EQ(least_expert_memory(mixture(joined), layers), 2 * 6 * base::kMiB);
    }
}

TEST(NameExperts, OtherFormsAreNotFound) {
    EXPECT_THAT(find_expert_layers({}), IsEmpty());
    const auto none =
        [](const std::vector<std::pair<std::string, std::vector<std::uint64_t>>>& of) {
            Table table;
            for (const auto& [name, shape] : of) {
                table.add(name, shape);
            }
            return find_expert_layers(table.table).empty();
        };
    EXPECT_TRUE(none({{"a.experts.0.w", {4}}}));                          // one only
    EXPECT_TRUE(none({{"a.experts.0.w", {4}}, {"a.experts.2.w", {4}}}));  // a hole
    EXPECT_TRUE(none({{"a.experts.1.w", {4}}, {"a.experts.2.w", {4}}}));
    EXPECT_TRUE(none({{"a.experts.0.w", {4}}, {"a.experts.1.w", {4}}, {"a.experts.1.v", {4}}}));
    EXPECT_TRUE(none({{"a.experts.0.w", {4}}, {"a.experts.1.w", {4}}, {"a.experts.all", {2, 4}}}));
    EXPECT_TRUE(none({{"a.experts.up", {4, 3}}, {"a.experts.down", {3, 4}}}));
    EXPECT_TRUE(none({{"a.experts.up", {4}}}));
    EXPECT_TRUE(none({{"a.experts.up", {0, 4}}}));
    EXPECT_TRUE(none({{"a.experts.up", {std::uint64_t{1} << 40, 0}}}));
    EXPECT_TRUE(none({{"a.experts.up", {}}}));
    EXPECT_TRUE(none({{"a.experts.table", {std::uint64_t{1} << 40, 1}}}));
    EXPECT_TRUE(none({{"a.shared_expert.up", {2, 4}}, {"experts", {2, 4}}}));
    EXPECT_TRUE(none({{"a.experts.0", {2, 4}}, {"a.experts.1", {3, 4}}}));
    EXPECT_FALSE(none({{"a.experts.up", {2, 4}}}));
}

// A token reads what it uses and what is not in memory, not all experts.
TEST(ForecastOfExperts, ATokenReadsThoseThatItUsesAndThatAreNotInMemory) {
    for (const bool joined : {false, true}) {
        const TensorTable table = mixture(joined);
        const WeightForecast all = forecast_weights(table, 400 * base::kMiB);
        const WeightForecast two = forecast_weights(table, 400 * base::kMiB, 2, 2);
        EXPECT_EQ(all.experts.experts, kLayers * kExperts);
        EXPECT_EQ(all.experts.chosen, kLayers * kExperts);
        EXPECT_EQ(two.experts.chosen, kLayers * 2);
        EXPECT_EQ(two.experts.layers, kLayers);
        EXPECT_EQ(two.experts.bytes, kLayers * kExperts * 6 * base::kMiB);
        EXPECT_EQ(two.experts.slot_bytes, 6 * base::kMiB);
        EXPECT_EQ(two.plan.read_bytes, 0U);  // layers come first, and stay
        const double missing = 1 - static_cast<double>(two.experts.slots) / (kLayers * kExperts);
        EXPECT_NEAR(two.experts.hits, 1 - missing, 1e-9);
        EXPECT_NEAR(static_cast<double>(two.read_bytes()), missing * kLayers * 2 * 6 * base::kMiB,
                    100);
        EXPECT_NEAR(static_cast<double>(all.read_bytes()),
                    4 * static_cast<double>(two.read_bytes()), 100);
        EXPECT_LE(two.used_bytes(), 400 * base::kMiB);
        EXPECT_GE(two.used_bytes(), 380 * base::kMiB);
        EXPECT_EQ(std::accumulate(two.expert_read_bytes.begin(), two.expert_read_bytes.end(),
                                  std::uint64_t{0}),
                  two.experts.read_bytes);
        EXPECT_EQ(two.weights_of_token() / base::kMiB, 8 + kLayers * (4 + 2 * 6));
        for (std::size_t i = 0; i < two.plan.units.size(); ++i) {
            EXPECT_EQ(two.expert_read_bytes[i] != 0, two.plan.units[i].name != "lm_head");
        }
        // More than there are is all.
        EXPECT_EQ(forecast_weights(table, 400 * base::kMiB, 2, 99).read_bytes(), all.read_bytes());
    }
}

TEST(ForecastOfExperts, OfNothingButExpertsTheyAreUnits) {
    TensorTable table = mixture(false);
    std::erase_if(table.tensors, [](const TensorEntry& entry) {
        return entry.name.find("experts") == std::string::npos;
    });
    const WeightForecast forecast = forecast_weights(table, 200 * base::kMiB, 2, 2);
    EXPECT_EQ(forecast.experts.experts, 0U);
    EXPECT_GT(forecast.read_bytes(), 0U);
    EXPECT_GT(pass_seconds(forecast, 1e9), 0);
}

TEST(ForecastOfExperts, TheLeastThatWorksHasTwoExperts) {
    const TensorTable table = mixture(true);
    const std::uint64_t least = forecast_weights(table, 400 * base::kMiB).least_memory_bytes;
    EXPECT_GE(least, 2 * 6 * base::kMiB + 2 * 4 * base::kMiB);
    const WeightForecast forecast = forecast_weights(table, least, 2, 2);
    EXPECT_EQ(forecast.experts.slots, 2U);
    EXPECT_LE(forecast.used_bytes(), least);
    EXPECT_THAT(
        error_of([&] { static_cast<void>(forecast_weights(table, least - 1, 2, 2)); }).what(),
        HasSubstr(fmt::format("({} bytes)", least)));
}

TEST(ForecastOfExperts, WhereAllFitsNothingIsReadAndATokenIsComputedWithThoseThatItUses) {
    const WeightForecast forecast = forecast_weights(mixture(false), 4000 * base::kMiB, 2, 2);
    EXPECT_EQ(forecast.read_bytes(), 0U);
    EXPECT_EQ(forecast.experts.experts, 0U);
    EXPECT_EQ(forecast.weights_of_token() / base::kMiB, 8 + kLayers * (4 + 2 * 6));
    EXPECT_NEAR(pass_seconds(forecast, 1e9, 0.5), 0.5, 1e-9);
}

// The layer waits for its experts, so what computing takes comes on top of it.
TEST(ForecastOfExperts, AWaitForExpertsIsNotHiddenByComputing) {
    const WeightForecast forecast = forecast_weights(mixture(true), 200 * base::kMiB, 2, 2);
    const double reading = static_cast<double>(forecast.read_bytes()) / 1e9;
    const double experts = static_cast<double>(forecast.experts.read_bytes) / 1e9;
    EXPECT_NEAR(pass_seconds(forecast, 1e9), reading, 1e-6);
    EXPECT_NEAR(pass_seconds(forecast, 1e9, 5 * reading), 5 * reading + experts, 0.01 * reading);
}

TEST(ForecastOfExperts, SharesOfABudget) {
    const auto share = [](std::uint64_t memory) {
        const WeightShares out = share_weight_memory(memory, 100, 1000, 20);
        EXPECT_EQ(out.units_bytes + out.experts_bytes, memory);
        return out.units_bytes;
    };
    EXPECT_EQ(share(120), 100U);
    EXPECT_EQ(share(150), 100U);  // experts have room for 8 first
    EXPECT_EQ(share(180), 100U);
    EXPECT_EQ(share(580), 500U);
    EXPECT_EQ(share(2000), 1000U);  // units have no use for more
    EXPECT_EQ(share(10), 0U);
    EXPECT_EQ(share_weight_memory(500, 100, 1000, 0).units_bytes, 500U);
}

class ExpertsPerToken : public testing::Test {
protected:
    std::uint64_t in(const std::string& text) {
        test::write_text(folder_ / "config.json", text);
        const std::vector<std::string> folders{folder_.path()};
        return find_experts_per_token(*engine_, folders);
    }
    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
};

TEST_F(ExpertsPerToken, AsTheConfigurationSays) {
    EXPECT_EQ(in(R"({"num_experts": 64, "num_experts_per_tok": 8})"), 8U);
    EXPECT_EQ(in(R"({"text_config": {"a": [{"b": 1}], "num_experts_per_tok": 4}, "c": 1})"), 4U);
    EXPECT_EQ(in(R"({"experts_per_token": 2})"), 2U);
    EXPECT_EQ(in(R"({"thinker": {"text": {"num_experts_per_tok": 6}}, "moe_topk": 3})"), 3U);
    EXPECT_EQ(in(R"({"thinker": {"text": {"num_experts_per_tok": 6}}, "moe_topk": 0.5})"), 6U);
    EXPECT_EQ(in(R"({"num_experts_per_tok": null})"), 0U);
    EXPECT_EQ(in(R"({"num_experts_per_tok": {"num_experts": 3}})"), 0U);
    EXPECT_EQ(in(R"({"num_experts_per_tok": [5]})"), 0U);
    EXPECT_EQ(in(R"({"num_experts_per_tok": -1})"), 0U);
    EXPECT_EQ(in(R"({"num_experts_per_tok": 1e99})"), 0U);
    EXPECT_EQ(in("{}"), 0U);
}

TEST_F(ExpertsPerToken, NoFileSaysNothingAndOneThatIsNotJsonIsNamed) {
    const std::vector<std::string> none{folder_.path()};
    EXPECT_EQ(find_experts_per_token(*engine_, none), 0U);
    for (const char* text : {"", "{", "[1]", "\xff\xfe"}) {
        const std::string message = error_of([&] { static_cast<void>(in(text)); }).what();
        EXPECT_THAT(message, HasSubstr("config.json")) << text;
    }
}

TEST_F(ExpertsPerToken, NextToTheFileThatIsNamedAndInAnyFolder) {
    in(R"({"num_experts_per_tok": 8})");
    test::write_text(folder_ / "model.safetensors", "x");
    const support::TempFolder other;
    const std::vector<std::string> folders{other.path(), folder_ / "model.safetensors"};
    EXPECT_EQ(find_experts_per_token(*engine_, folders), 8U);
}

TEST(MemoryRate, IsMeasuredTimed) {
    for (const unsigned threads : {0U, 1U, 3U}) {
        EXPECT_GT(measure_memory_rate(threads, 5ms), 1e7);
    }
}

}  // namespace
}  // namespace penstock::weights
