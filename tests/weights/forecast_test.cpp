// SPDX-License-Identifier: Apache-2.0
// What a budget would do: of a Llama by its names alone, and the seconds of a pass.
#include "base/align.hpp"
#include "support/text_files.hpp"

#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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

}  // namespace
}  // namespace penstock::weights
