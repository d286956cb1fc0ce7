// SPDX-License-Identifier: Apache-2.0
// Measuring for plan: what it answers, and that nothing is left of it.
#include "support/temp_folder.hpp"

#include <penstock/plan.hpp>

#include <gmock/gmock.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace penstock::plan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PlanMeasureTest : public testing::Test {
protected:
    [[nodiscard]] MeasureOptions quick() const {
        MeasureOptions options;
        options.paths = {folder_.path()};
        options.seconds = 0.3;
        options.size = 16 << 20;
        return options;
    }
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> out;
        for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
            out.push_back(entry.path().filename());
        }
        return out;
    }
    template <typename Call>
    [[nodiscard]] static std::string message_of(Call call) {
        try {
            call();
            return "no error";
        } catch (const Error& error) {
            return error.what();
        }
    }

    support::TempFolder folder_;
};

TEST_F(PlanMeasureTest, RatesHaveIntervalsAndStepsAreReported) {
    MeasureOptions options = quick();
    std::vector<MeasureStep> steps;
    options.progress = [&](const MeasureStep& step) {
        steps.push_back(step);
        EXPECT_THAT(names(), IsEmpty());
        return true;
    };
    const StorageRates rates = measure_rates(options);
    for (const auto& rate : {rates.files, rates.samples, rates.writes}) {
        ASSERT_TRUE(rate);
        EXPECT_GT(rate->low, 0);
        EXPECT_LE(rate->low, rate->mean);
        EXPECT_LE(rate->mean, rate->high);
    }
    EXPECT_THAT(rates.places, HasSubstr(folder_.path()));
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(steps.back().step, 18U);
    EXPECT_EQ(steps.back().steps, 18U);
    EXPECT_THAT(names(), IsEmpty());
}

TEST_F(PlanMeasureTest, StoppedAtAnyReportItLeavesNothing) {
    for (int stop = 0;; stop += 11) {
        MeasureOptions options = quick();
        int seen = 0;
        options.progress = [&](const MeasureStep&) { return seen++ != stop; };
        try {
            static_cast<void>(measure_rates(options));
            EXPECT_GT(stop, 10);
            break;
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kCancelled);
        }
        EXPECT_THAT(names(), IsEmpty());
    }
    MeasureOptions options = quick();
    int seen = 0;
    options.progress = [&](const MeasureStep&) -> bool {
        return ++seen < 9 ? true : throw std::runtime_error("mine");
    };
    EXPECT_THROW(static_cast<void>(measure_rates(options)), std::runtime_error);
    EXPECT_THAT(names(), IsEmpty());
}

TEST_F(PlanMeasureTest, AProcessThatIsKilledLeavesNothing) {
    const pid_t child = ::fork();
    if (child == 0) {
        MeasureOptions options = quick();
        int seen = 0;
        options.progress = [&](const MeasureStep&) { return ++seen < 9 || ::raise(SIGKILL) == 0; };
        static_cast<void>(measure_rates(options));
        ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_THAT(names(), IsEmpty());
}

TEST_F(PlanMeasureTest, ThreadsMeasureOneFolder) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
            MeasureOptions options = quick();
            options.writes = options.samples = false;
            EXPECT_TRUE(measure_rates(options).files);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_THAT(names(), IsEmpty());
}

TEST_F(PlanMeasureTest, QuestionsAreAnsweredByMeasuredRates) {
    const MeasureOptions options = quick();
    const Answer train = ask_measured("train", {{"model", "unet3d"}}, options);
    EXPECT_GT(train.at("accelerators_fed").value, 0);
    EXPECT_THAT(train.notes, Contains(HasSubstr("95 % interval")));
    const Figure samples =
        ask_measured("train", {{"model", "cosmoflow"}}, options).at("storage_bytes_per_second");
    EXPECT_THAT(samples.label, HasSubstr("random reads of 128 KiB"));
    const Answer saved = ask_measured("checkpoint", {{"model", "7b"}, {"interval", "2h"}}, options);
    EXPECT_GT(saved.at("storage_seconds").value, 0);
    EXPECT_THAT(saved.notes, Contains(HasSubstr("it may take 6 min")));
    EXPECT_GT(ask_measured("restore", {{"model", "7b"}}, options).at("storage_seconds_high").value,
              0);
    const Answer streamed = ask_measured("stream", {{"model", "7b"}}, options);
    EXPECT_LE(streamed.at("tokens_per_second_low").value, streamed.at("tokens_per_second").value);
    const Answer fed = ask_measured("feeds", {{"checkpoint_bytes", "1GB"}}, options);
    EXPECT_EQ(fed.verb, "measure");
    EXPECT_GT(fed.at("checkpoint_seconds").value, 0);
    FeedsOptions job;
    job.model = "cosmoflow";
    const Answer typed = measure(job, options);
    EXPECT_GT(typed.at("samples_bytes_per_second").value, 0);
    EXPECT_THROW(static_cast<void>(typed.at("files_bytes_per_second")), Error);
    EXPECT_THAT(names(), IsEmpty());
}

TEST_F(PlanMeasureTest, WhatIsWrongIsRefusedBeforeAnythingIsWritten) {
    const auto rates = [&](auto change) {
        MeasureOptions options = quick();
        change(options);
        options.progress = [](const MeasureStep&) {
            ADD_FAILURE() << "it began";
            return false;
        };
        return message_of([&] { static_cast<void>(measure_rates(options)); });
    };
    EXPECT_THAT(rates([](auto& o) { o.paths.clear(); }), HasSubstr("paths: got none"));
    for (const double wrong : {0.0, -1.0, 0.05, 3601.0, std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity()}) {
        EXPECT_THAT(rates([&](auto& o) { o.seconds = wrong; }), HasSubstr("seconds: got"));
        EXPECT_THAT(rates([&](auto& o) { o.size = wrong; }), HasSubstr("size: got"));
    }
    EXPECT_THAT(rates([](auto& o) { o.paths.push_back(o.paths[0] + "/."); }),
                HasSubstr("are the same"));
    EXPECT_THAT(rates([](auto& o) { o.paths[0] += std::string("\0x", 2); }),
                HasSubstr("zero byte"));
    EXPECT_THAT(rates([](auto& o) { o.files = o.samples = o.writes = false; }),
                HasSubstr("one or more of"));
    const auto question = [&](const char* verb, const std::vector<Word>& words) {
        return message_of([&] { static_cast<void>(ask_measured(verb, words, quick())); });
    };
    EXPECT_THAT(question("mix", {}), HasSubstr("expected one of feeds, train"));
    EXPECT_THAT(question("train", {{"model", "resnet5"}}), HasSubstr("did you mean 'resnet50'?"));
    EXPECT_THAT(question("stream", {{"model", "7b"}, {"rate", "1GB/s"}}),
                HasSubstr("rate: got a rate and paths"));
    const std::string file = folder_ / "precious";
    std::ofstream(file) << std::string(8 << 20, 'p');
    EXPECT_THAT(rates([&](auto& o) {
                    o.paths = {file};
                    o.files = o.samples = false;
                }),
                HasSubstr("expected folders"));
    EXPECT_EQ(std::filesystem::file_size(file), 8U << 20);
}

TEST_F(PlanMeasureTest, PathsThatCannotBeMeasuredAreErrors) {
    const auto of_path = [&](const std::string& path) {
        MeasureOptions options = quick();
        options.paths = {folder_.path(), path};
        return message_of([&] { static_cast<void>(measure_rates(options)); });
    };
    EXPECT_THAT(of_path(folder_ / "missing"), HasSubstr("No such file"));
    EXPECT_THAT(of_path("/proc/self"), HasSubstr("/proc/self"));
    EXPECT_THAT(of_path("/dev/null"), HasSubstr("no folder, file or block device"));
    std::filesystem::create_symlink("loop", folder_ / "loop");
    EXPECT_THAT(of_path(folder_ / "loop"), HasSubstr("symbolic link"));
    std::ofstream(folder_ / "small") << "small";
    EXPECT_THAT(of_path(folder_ / "small"), HasSubstr("a file has 5 bytes"));
    MeasureOptions options = quick();
    options.size.reset();
    options.paths = {folder_ / "small"};
    EXPECT_THAT(message_of([&] { static_cast<void>(measure_rates(options)); }),
                HasSubstr("expected 4 MiB or more"));
    const support::TempFolder memory("/dev/shm");
    EXPECT_THAT(of_path(memory.path()), HasSubstr("direct"));
    EXPECT_THAT(names(), testing::UnorderedElementsAre("loop", "small"));
}

}  // namespace
}  // namespace penstock::plan
