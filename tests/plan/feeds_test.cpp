// SPDX-License-Identifier: Apache-2.0
#include <penstock/plan.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace penstock::plan {
namespace {

using testing::HasSubstr;

std::string refused(const FeedsOptions& options) {
    try {
        static_cast<void>(feeds(options));
        return "answered";
    } catch (const Error& error) {
        return error.what();
    }
}

TEST(PlanFeeds, IsTheInverseOfTrain) {
    for (const TrainPreset& row : train_presets()) {
        TrainOptions job;
        job.model = row.model;
        job.preset = row.preset;
        job.accelerator = row.accelerator;
        job.accelerators = 17;
        FeedsOptions storage;
        const double rate = train(job).at("read_bytes_per_second").value;
        (reads_files_of_samples(row.model) ? storage.samples : storage.files) = rate;
        storage.model = row.model;
        storage.preset = row.preset;
        storage.accelerator = row.accelerator;
        EXPECT_NEAR(feeds(storage).at("accelerators").value, 17, 1e-9);
    }
}

TEST(PlanFeeds, TheIntervalIsInTheSentence) {
    FeedsOptions storage;
    storage.files = 10e9;
    storage.files_low = 9.5e9;
    storage.files_high = 10.6e9;
    storage.model = "unet3d";
    storage.preset = "storage-2.0";
    storage.accelerator = "h100";
    const Answer answer = feeds(storage);
    EXPECT_LT(answer.at("accelerators_low").value, answer.at("accelerators").value);
    EXPECT_GT(answer.at("accelerators_high").value, answer.at("accelerators").value);
    EXPECT_THAT(answer.notes.front(), HasSubstr("It feeds 3 accelerators (2.99 to 3.336, 95 % "
                                                "interval) of unet3d on h100 (storage-2.0); reads "
                                                "in sequence bind."));
    storage.files = storage.files_low = storage.files_high = 1e9;
    EXPECT_THAT(feeds(storage).notes.front(), HasSubstr("not one accelerator (0.3148)"));
}

TEST(PlanFeeds, ACheckpointFitsOrDoesNotOrCannotBeSaid) {
    FeedsOptions storage;
    storage.checkpoint_bytes = 2450e9;
    const auto verdict = [&](double low, double mean, double high) {
        storage.writes_low = low;
        storage.writes = mean;
        storage.writes_high = high;
        return feeds(storage).notes.front();
    };
    EXPECT_THAT(verdict(6.9e9, 7e9, 7.1e9), HasSubstr(": it fits"));
    EXPECT_THAT(verdict(6.5e9, 7e9, 7.5e9), HasSubstr("whether it fits cannot be said"));
    EXPECT_THAT(verdict(5e9, 6e9, 6.5e9), HasSubstr("it does not fit, durable writes bind"));
    storage.writes_low = storage.writes_high = storage.writes = 2450e9 / 360;
    EXPECT_DOUBLE_EQ(feeds(storage).at("checkpoint_seconds").value, 360);
}

TEST(PlanFeeds, AllPresetsAreInTheTable) {
    FeedsOptions storage;
    storage.files = 1e9;
    const std::size_t files = feeds(storage).tables.at(0).rows.size();
    storage.samples = 1e9;
    EXPECT_GT(feeds(storage).tables.at(0).rows.size(), files);
}

TEST(PlanFeeds, RefusesWhatDoesNotFit) {
    FeedsOptions storage;
    EXPECT_THAT(refused(storage), HasSubstr("expected one or more of the rates"));
    storage.files_low = 1;
    EXPECT_THAT(refused(storage), HasSubstr("files_low and files_high need files"));
    storage.files = 0.5;
    EXPECT_THAT(refused(storage), HasSubstr("expected low <= rate <= high"));
    storage.files = -1;
    EXPECT_THAT(refused(storage), HasSubstr("files: got -1"));
    storage.files = 2;
    storage.model = "cosmoflow";
    EXPECT_THAT(refused(storage), HasSubstr("needs 'samples', the rate of random reads"));
    storage.model.clear();
    storage.checkpoint_bytes = 5;
    EXPECT_THAT(refused(storage), HasSubstr("checkpoint_bytes needs 'writes'"));
    storage.checkpoint_bytes = 0;
    EXPECT_THAT(refused(storage), HasSubstr("checkpoint_bytes: got 0"));
}

}  // namespace
}  // namespace penstock::plan
