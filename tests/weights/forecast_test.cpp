// SPDX-License-Identifier: Apache-2.0
// What a budget would do: of a Llama by its names alone, and the seconds of a pass.
#include "base/align.hpp"
#include "support/text_files.hpp"

#include <penstock/plan.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::weights {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// 20 layers of 40 MiB (16, 16, 8), a head and an embedding of 100 MiB.
TensorTable llama() {
    TensorTable out;
    out.path = "model/model.safetensors.index.json";
    out.files = {"model/model-00001-of-00001.safetensors"};
    std::uint64_t offset = 4096;
    const auto add = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
        const std::uint64_t bytes = 2 * rows * columns;
        out.tensors.push_back({.name = name,
                               .dtype = "BF16",
                               .shape = {rows, columns},
                               .strides = {},
                               .bytes = bytes,
                               .stretches = {{0, offset, bytes}},
                               .checksum = ChecksumKind::kNone});
        offset += bytes;
    };
    add("lm_head.weight", 51200, 1024);
    add("model.embed_tokens.weight", 51200, 1024);
    for (int layer = 0; layer < 20; ++layer) {
        for (const auto& [name, rows] : {std::pair{"up", 8192}, {"down", 8192}, {"q", 4096}}) {
            add(fmt::format("model.layers.{}.{}.weight", layer, name), rows, 1024);
        }
    }
    return out;
}

TEST(Forecast, TheBudgetIsUsedAndTheEmbeddingIsReadByRow) {
    const WeightForecast forecast = forecast_weights(llama(), 400 * base::kMiB);
    EXPECT_EQ(forecast.weight_bytes, 1000 * base::kMiB);
    EXPECT_THAT(forecast.rows, ElementsAre("model.embed_tokens.weight"));
    EXPECT_EQ(forecast.plan.units.size(), 21U);
    EXPECT_LE(forecast.plan.used_bytes(), 400 * base::kMiB);
    EXPECT_GE(forecast.plan.used_bytes(), 388 * base::kMiB);
    EXPECT_NEAR(static_cast<double>(forecast.plan.read_bytes), 560.0 * base::kMiB,
                50.0 * base::kMiB);
}

TEST(Forecast, WhereAllFitsNothingIsRead) {
    const WeightForecast forecast = forecast_weights(llama(), 1100 * base::kMiB);
    EXPECT_EQ(forecast.plan.read_bytes, 0U);
    EXPECT_EQ(forecast.plan.slots, 0U);
    EXPECT_THAT(forecast.rows, IsEmpty());
    EXPECT_EQ(forecast.plan.units.size(), 22U);
}

// The least budget works, a byte less does not, and the tensor that sets it is named.
TEST(Forecast, TheLeastThatWorks) {
    const std::uint64_t least = forecast_weights(llama(), 1000 * base::kMiB).least_memory_bytes;
    EXPECT_GE(least, 2 * 16 * base::kMiB);
    EXPECT_LT(least, 240 * base::kMiB);
    const WeightForecast forecast = forecast_weights(llama(), least);
    EXPECT_EQ(forecast.least_memory_bytes, least);
    EXPECT_LE(forecast.plan.used_bytes(), least);
    EXPECT_THAT(error_of([&] { static_cast<void>(forecast_weights(llama(), least - 1)); }).what(),
                HasSubstr(fmt::format("({} bytes)", least)));
    EXPECT_THAT(error_of([&] { static_cast<void>(forecast_weights(llama(), 1)); }).what(),
                HasSubstr(forecast.least_tensor));
}

TEST(Forecast, ATiedHeadIsAUnit) {
    TensorTable tied = llama();
    tied.tensors.erase(tied.tensors.begin());
    const WeightForecast forecast = forecast_weights(tied, 400 * base::kMiB);
    EXPECT_THAT(forecast.rows, ElementsAre("model.embed_tokens.weight"));
    EXPECT_EQ(std::count_if(forecast.plan.units.begin(), forecast.plan.units.end(),
                            [](const auto& unit) { return unit.name == "model.embed_tokens"; }),
              1);
}

TEST(Forecast, WhatCannotBePlannedIsRefused) {
    EXPECT_THAT(error_of([] { static_cast<void>(forecast_weights({}, base::kMiB)); }).what(),
                HasSubstr("there are no tensors in it"));
    EXPECT_THAT(
        error_of([] { static_cast<void>(forecast_weights(llama(), 400 * base::kMiB, 1)); }).what(),
        HasSubstr("slots=1"));
}

TEST(PassSeconds, TheSlowerOfDeviceAndComputation) {
    const WeightPlan plan = forecast_weights(llama(), 400 * base::kMiB).plan;
    const double reading = static_cast<double>(plan.read_bytes) / 1e9;
    EXPECT_NEAR(pass_seconds(plan, 1e9), reading, 1e-9);
    EXPECT_NEAR(pass_seconds(plan, 1e9, 0.2 * reading), reading, 0.1 * reading);
    EXPECT_NEAR(pass_seconds(plan, 1e9, 5 * reading), 5 * reading, 0.1 * reading);
    EXPECT_NEAR(pass_seconds(forecast_weights(llama(), 1100 * base::kMiB).plan, 1e9, 0.5), 0.5,
                1e-9);
}

// Two slots: a unit that takes long to compute keeps the device waiting, and the reverse.
TEST(PassSeconds, UnevenUnitsWaitForOneAnother) {
    WeightPlan plan;
    plan.units = {{"read", 100, 100}, {"kept", 100, 0}, {"other", 100, 100}};
    plan.slots = 2;
    plan.slot_bytes = 100;
    EXPECT_NEAR(pass_seconds(plan, 100), 2, 1e-9);     // the device never rests
    EXPECT_NEAR(pass_seconds(plan, 100, 3), 3, 1e-9);  // nor does the computation
    EXPECT_NEAR(pass_seconds(plan, 1000, 3), 3, 1e-9);
    for (const auto& [rate, seconds] : {std::pair{0.0, 0.0}, {-1.0, 0.0}, {1.0, -1.0}}) {
        EXPECT_THAT(error_of([&, rate = rate, seconds = seconds] {
                        static_cast<void>(pass_seconds(plan, rate, seconds));
                    }).what(),
                    HasSubstr("expected a rate above 0"));
    }
}

// `penstock plan stream` says the bound of the seconds of a token, and `penstock weights plan` what
// units of a size make of it: never less, and no more than two units that wait for one another.
TEST(PassSeconds, AreTheBoundOfPlanStreamOrMore) {
    const TensorTable table = llama();
    std::mt19937_64 random(7);  // NOLINT(cert-msc51-cpp): the same models in each run
    for (int turn = 0; turn < 200; ++turn) {
        const std::uint64_t memory = (140 + random() % 700) * base::kMiB;
        const double rate = 1e8 * static_cast<double>(1 + random() % 100);
        const WeightForecast forecast = forecast_weights(table, memory);
        const auto read = static_cast<double>(forecast.read_bytes());
        const double computing = read / rate * static_cast<double>(random() % 300) / 100;
        const auto parameters = static_cast<double>(forecast.weight_bytes) / 2;
        plan::StreamOptions options;
        options.model = fmt::format("{}", forecast.weight_bytes / 2);
        options.rate = rate;
        options.resident = static_cast<double>(forecast.weight_bytes - forecast.read_bytes());
        options.flops = 2 * parameters / std::max(computing, 1e-9);
        const double bound = plan::stream(options).at("pass_seconds").value;
        const double seconds = pass_seconds(forecast, rate, computing);
        EXPECT_GE(seconds, bound * (1 - 1e-9)) << turn;
        EXPECT_LE(seconds, bound * (1 + 2 * 0.1)) << turn;
    }
}

// Equal units are divided together, and no more than needed.
TEST(FitUnits, TheLargestAreDividedUntilAllFit) {
    const TensorTable table = llama();
    UnitsToFit from{{}, 1000};
    for (int layer = 0; layer < 20; ++layer) {
        const std::string name = fmt::format("model.layers.{}", layer);
        from.units.push_back({name, {name + ".up.weight", name + ".down.weight"}});
    }
    from.units.push_back({"lm_head", {"lm_head.weight"}});
    std::vector<std::vector<std::size_t>> asked;
    const auto none = [&](std::span<const std::size_t> numbers) -> std::optional<UnitsToFit> {
        asked.emplace_back(numbers.begin(), numbers.end());
        return std::nullopt;
    };
    const FittedUnits whole = fit_weight_units(table, from, {}, none);
    EXPECT_EQ(whole.units.size(), 21U);
    ASSERT_EQ(asked.size(), 2U);
    EXPECT_THAT(asked[0], ElementsAre(20));
    EXPECT_EQ(asked[1].size(), 20U);
    EXPECT_EQ(whole.least_bytes, 1000 + least_weight_memory(table, from.units));
    const auto halves = [&](std::span<const std::size_t> numbers) {
        UnitsToFit out{{from.units[20]}, 1000};
        for (const std::size_t number : numbers) {
            for (const std::string& tensor : from.units[number].tensors) {
                out.units.push_back({tensor, {tensor}});
            }
        }
        return numbers.size() == 20 ? std::optional(out) : std::nullopt;
    };
    const FittedUnits fitted =
        fit_weight_units(table, from, {.memory_bytes = whole.least_bytes - 1}, halves);
    EXPECT_EQ(fitted.units.size(), 41U);
    EXPECT_LT(fitted.least_bytes, whole.least_bytes);
    const WeightStreamOptions enough{.memory_bytes = whole.least_bytes};
    EXPECT_EQ(fit_weight_units(table, from, enough, halves).units.size(), 21U);
}

}  // namespace
}  // namespace penstock::weights
