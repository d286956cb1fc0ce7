// SPDX-License-Identifier: Apache-2.0
#include <penstock/plan.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace penstock::plan {
namespace {

double read_rate(const TrainOptions& options) {
    return train(options).at("read_bytes_per_second").value;
}

TEST(PlanTrain, GivesTheFiguresOfTheTalk) {
    TrainOptions job;
    job.model = "resnet50";
    job.preset = "snia-2024";
    job.accelerators = 8;
    EXPECT_NEAR(read_rate(job), 6.1e9, 0.01e9);
    job.model = "unet3d";
    EXPECT_NEAR(read_rate(job), 41.05e9, 0.01e9);
}

TEST(PlanTrain, ResNetIsAFactorOfFourApart) {
    TrainOptions job;
    job.model = "resnet50";
    job.accelerator = "h100";
    job.preset = "training-3.1";
    const double logged = train(job).at("samples_per_second").value;
    job.preset = "storage-2.0";
    EXPECT_NEAR(logged / train(job).at("samples_per_second").value, 4, 0.05);
}

TEST(PlanTrain, NeverNeedsLessForMore) {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> any(1, 1e6);
    for (int i = 0; i < 1000; ++i) {
        TrainOptions job;
        job.accelerators = std::floor(any(random));
        job.samples_per_second = any(random);
        job.bytes_per_sample = any(random);
        job.utilisation = any(random) / 1e6;
        const double rate = read_rate(job);
        TrainOptions more = job;
        more.accelerators += std::floor(any(random));
        EXPECT_GT(read_rate(more), rate);
        more = job;
        more.bytes_per_sample = *job.bytes_per_sample * 2;
        EXPECT_DOUBLE_EQ(read_rate(more), 2 * rate);
        more = job;
        more.utilisation = 1;
        EXPECT_GE(read_rate(more), rate);
    }
}

TEST(PlanTrain, EachPresetHasItsSources) {
    for (const TrainPreset& row : train_presets()) {
        EXPECT_GT(row.samples_per_second, 0) << row.model;
        EXPECT_GT(row.bytes_per_sample, 0) << row.model;
        EXPECT_FALSE(row.source.empty()) << row.model;
        EXPECT_FALSE(row.bytes_source.empty()) << row.model;
        TrainOptions job;
        job.model = row.model;
        job.preset = row.preset;
        job.accelerator = row.accelerator;
        const double rate = row.samples_per_second * row.bytes_per_sample;
        EXPECT_DOUBLE_EQ(read_rate(job), rate) << row.preset << " " << row.model;
    }
}

TEST(PlanTrain, RefusesWhatIsNoJob) {
    const auto wrong = [](double accelerators, double samples, double bytes, double use) {
        TrainOptions job;
        job.accelerators = accelerators;
        job.samples_per_second = samples;
        job.bytes_per_sample = bytes;
        job.utilisation = use;
        EXPECT_THROW(static_cast<void>(train(job)), Error);
    };
    const double nan = std::numeric_limits<double>::quiet_NaN();
    wrong(0, 1, 1, 1);
    wrong(-1, 1, 1, 1);
    wrong(1.5, 1, 1, 1);
    wrong(1, 0, 1, 1);
    wrong(1, nan, 1, 1);
    wrong(1, 1, 0, 1);
    wrong(1, 1, 1, 1.1);
    wrong(1, 1, 1, 0);
    wrong(1, 1e31, 1, 1);
}

TEST(PlanSize, TheLargerRuleDecides) {
    SizeOptions set;
    set.model = "unet3d";
    set.accelerator = "h100";
    set.accelerators = 8;
    set.memory_bytes = 512.0 * (1 << 30);
    Answer answer = size(set);
    EXPECT_EQ(answer.at("samples_for_steps").value, 500 * 7 * 8);
    EXPECT_EQ(answer.at("samples").value, 28000);
    EXPECT_NEAR(answer.at("data_bytes").value, 28000 * 146600628.0, 1);
    set.hosts = 4;
    answer = size(set);
    EXPECT_EQ(answer.at("samples").value, answer.at("samples_for_memory").value);
    EXPECT_GE(answer.at("data_bytes").value, 5 * 4 * *set.memory_bytes);
    EXPECT_LE(answer.at("cached_share").value, 0.2);
}

TEST(PlanSize, NeverNeedsLessForMore) {
    std::mt19937_64 random(2);
    std::uniform_real_distribution<double> any(1, 1e4);
    for (int i = 0; i < 500; ++i) {
        SizeOptions set;
        set.batch = std::floor(any(random));
        set.bytes_per_sample = any(random);
        set.memory_bytes = 1e6 * any(random);
        set.accelerators = std::floor(any(random));
        set.samples_per_file = std::floor(any(random));
        const double bytes = size(set).at("data_bytes").value;
        SizeOptions more = set;
        more.accelerators += 1;
        EXPECT_GE(size(more).at("data_bytes").value, bytes);
        more = set;
        more.hosts += 1;
        EXPECT_GE(size(more).at("data_bytes").value, bytes);
    }
}

TEST(PlanSize, NeedsTheMemory) {
    SizeOptions set;
    set.model = "unet3d";
    EXPECT_THROW(static_cast<void>(size(set)), Error);
    set.memory_bytes = 1 << 30;
    set.steps = 0;
    EXPECT_THROW(static_cast<void>(size(set)), Error);
}

}  // namespace
}  // namespace penstock::plan
