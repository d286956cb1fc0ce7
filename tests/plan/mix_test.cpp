// SPDX-License-Identifier: Apache-2.0
#include <penstock/plan.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace penstock::plan {
namespace {

using testing::HasSubstr;

MixJob burst(const char* kind, double bytes, double within, double every = 0) {
    MixJob job;
    job.kind = kind;
    job.bytes = bytes;
    job.within = within;
    if (every > 0) {
        job.every = every;
    }
    return job;
}

std::string refused(const std::string& jobs) {
    try {
        static_cast<void>(mix(mix_of_json(fmt::format(R"({{"jobs": {}}})", jobs))));
        return "answered";
    } catch (const Error& error) {
        return error.what();
    }
}

TEST(PlanMix, SumsBurstsThatMeet) {
    MixOptions options;
    options.length = 1000;
    options.jobs = {burst("checkpoint", 1000, 10, 100), burst("restore", 600, 60)};
    options.jobs[1].start = 105;
    const Answer answer = mix(options);
    EXPECT_DOUBLE_EQ(answer.at("peak_bytes_per_second").value, 110);
    EXPECT_DOUBLE_EQ(answer.at("peak_read_bytes_per_second").value, 10);
    EXPECT_DOUBLE_EQ(answer.at("peak_write_bytes_per_second").value, 100);
    EXPECT_DOUBLE_EQ(answer.at("write_bytes").value, 9 * 1000);
    EXPECT_DOUBLE_EQ(answer.at("read_bytes").value, 600);
    EXPECT_DOUBLE_EQ(answer.at("mean_bytes_per_second").value, 9.6);
    EXPECT_DOUBLE_EQ(answer.at("p50_bytes_per_second").value, 0);
    EXPECT_DOUBLE_EQ(answer.at("p90_bytes_per_second").value, 10);
    EXPECT_DOUBLE_EQ(answer.at("aligned_bytes_per_second").value, 110);
    const Series& sum = answer.series.front();
    EXPECT_DOUBLE_EQ(*std::max_element(sum.y.begin(), sum.y.end()), 110);
}

TEST(PlanMix, ABurstThatTheEndCutsCountsForItsPart) {
    MixOptions options;
    options.length = 105;
    options.jobs = {burst("checkpoint", 1000, 10, 100)};
    EXPECT_DOUBLE_EQ(mix(options).at("write_bytes").value, 500);
    options.length = 50;
    EXPECT_DOUBLE_EQ(mix(options).at("peak_bytes_per_second").value, 0);
}

// Sums at random times, job by job, are the reference.
TEST(PlanMix, IsTheSumOfItsJobsAtAnyTime) {
    std::mt19937_64 random(3);
    std::uniform_real_distribution<double> any(1, 100);
    for (int round = 0; round < 100; ++round) {
        MixOptions options;
        options.length = 1000;
        double bytes = 0;
        double most = 0;
        for (int i = 0; i < 5; ++i) {
            const double within = any(random);
            options.jobs.push_back(
                burst("inference", 1000 * any(random), within, within + any(random)));
            options.jobs.back().start = any(random);
            MixOptions alone = options;
            alone.jobs = {options.jobs.back()};
            const Answer one = mix(alone);
            bytes += one.at("read_bytes").value;
            most = std::max(most, one.at("peak_bytes_per_second").value);
        }
        const Answer all = mix(options);
        EXPECT_NEAR(all.at("read_bytes").value, bytes, 1e-6 * bytes);
        const double peak = all.at("peak_bytes_per_second").value;
        EXPECT_GE(peak, most * (1 - 1e-9));
        EXPECT_LE(peak, all.at("aligned_bytes_per_second").value * (1 + 1e-9));
        EXPECT_LE(all.at("p50_bytes_per_second").value, all.at("p90_bytes_per_second").value);
        EXPECT_LE(all.at("p90_bytes_per_second").value, all.at("p99_bytes_per_second").value);
        EXPECT_LE(all.at("p99_bytes_per_second").value, peak);
        EXPECT_LE(all.at("mean_bytes_per_second").value, peak);
    }
}

TEST(PlanMix, TrainingIsThatOfTrain) {
    TrainOptions job;
    job.model = "resnet50";
    job.accelerators = 64;
    MixOptions options;
    MixJob same;
    same.kind = "train";
    same.model = "resnet50";
    same.accelerators = 64;
    options.jobs = {same};
    EXPECT_DOUBLE_EQ(mix(options).at("mean_bytes_per_second").value,
                     train(job).at("read_bytes_per_second").value);
}

TEST(PlanMix, NamesDoNotReachTheTerminalAsTheyAre) {
    const Answer answer = mix(mix_of_json(R"({"title": "\u001b[31m", "jobs": [
        {"kind": "train", "model": "flux", "name": "\u001b[2J"}]})"));
    EXPECT_EQ(text_of(answer).find('\x1b'), std::string::npos);
    EXPECT_EQ(explain(answer).find('\x1b'), std::string::npos);
    EXPECT_EQ(markdown_of(answer).find('\x1b'), std::string::npos);
}

TEST(PlanMix, WhatIsWrongNamesTheJob) {
    EXPECT_THAT(refused("[]"), HasSubstr("jobs: got none"));
    EXPECT_THAT(refused("3"), HasSubstr("jobs: got a number; expected a list"));
    EXPECT_THAT(refused("[3]"), HasSubstr("job 1: got a number; expected an object"));
    EXPECT_THAT(refused(R"([{"kind": "trian"}])"), HasSubstr("did you mean 'train'?"));
    EXPECT_THAT(refused(R"([{"kind": "train", "modle": "a"}])"),
                HasSubstr("job 1: there is no option 'modle'; did you mean 'model'?"));
    EXPECT_THAT(refused(R"([{"kind": "train", "model": "flux", "bytes": 3}])"),
                HasSubstr("train jobs have no 'bytes'"));
    EXPECT_THAT(refused(R"([{"name": "a", "kind": "checkpoint", "bytes": 3, "every": 5}])"),
                HasSubstr("job 1 'a': checkpoint jobs need 'within'"));
    EXPECT_THAT(refused(R"([{"kind": "checkpoint", "bytes": 3, "every": 5, "within": 6}])"),
                HasSubstr("it takes 6 s and comes every 5 s"));
    EXPECT_THAT(refused(R"([{"kind": "checkpoint", "bytes": 3, "every": "1us", "within": "1us"}])"),
                HasSubstr("more than a million bursts"));
    EXPECT_THAT(refused(R"([{"kind": "restore", "bytes": -3, "within": 6}])"),
                HasSubstr("bytes: got -3"));
    EXPECT_THAT(refused(R"([{"kind": "restore", "bytes": [], "within": 6}])"),
                HasSubstr("bytes: got a list; expected a number or a text"));
    EXPECT_THAT(refused(R"([{"kind": "preparation", "within": 6}])"),
                HasSubstr("'write_bytes', or both"));
    EXPECT_THAT(refused(fmt::format(R"([{{"kind": "train", "model": "flux", "name": "{}"}}])",
                                    std::string(1000, 'a'))),
                HasSubstr("name: got 1000 bytes; expected at most 64"));
    EXPECT_THROW(static_cast<void>(mix_of_json(R"({"job": []})")), Error);
    EXPECT_THROW(static_cast<void>(mix_of_json("kind: train")), Error);
}

}  // namespace
}  // namespace penstock::plan
