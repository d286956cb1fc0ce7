// SPDX-License-Identifier: Apache-2.0
// penstock features: what it prints, refuses and writes.
#include "cli/run.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::cli {
namespace {

struct Printed {
    int status = 0;
    std::string out;
    std::string err;
};

class FeaturesCommandTest : public testing::Test {
protected:
    FeaturesCommandTest() {
        std::mt19937_64 random(1);
        std::ofstream file(trace_, std::ios::binary);
        for (int batch = 0; batch < 30; ++batch) {
            std::vector<std::uint64_t> words{100};
            for (int i = 0; i < 100; ++i) {
                words.push_back(std::min(random() % 5000, random() % 5000));
            }
            words[1] = 4999;
            file.write(reinterpret_cast<const char*>(words.data()),
                       static_cast<std::streamsize>(words.size() * sizeof words[0]));
        }
    }
    static Printed simulate(std::vector<std::string> words) {
        words.insert(words.begin(), {"features", "simulate"});
        Printed printed;
        testing::internal::CaptureStdout();
        testing::internal::CaptureStderr();
        printed.status = run(words);
        printed.out = testing::internal::GetCapturedStdout();
        printed.err = testing::internal::GetCapturedStderr();
        return printed;
    }

    support::TempFolder folder_;
    std::string trace_ = folder_ / "run.trace";
};

TEST_F(FeaturesCommandTest, SimulateComparesPoliciesIn80Columns) {
    const std::string json = folder_ / "out.json";
    const Printed printed = simulate({trace_, "--cache", "1%,5%,300", "--json", json});
    EXPECT_EQ(printed.status, 0) << printed.err;
    EXPECT_THAT(printed.out, testing::HasSubstr("30 batches, 3000 ids, of a table of 5000 rows"));
    EXPECT_THAT(printed.out, testing::HasSubstr("cache of 250 rows"));
    EXPECT_THAT(printed.out, testing::HasSubstr("window of 8"));
    std::istringstream lines(printed.out.substr(printed.out.find('\n') + 1));
    for (std::string line; std::getline(lines, line);) {
        EXPECT_LE(line.size(), 80U) << line;
    }
    const auto all = nlohmann::json::parse(std::ifstream(json));
    EXPECT_EQ(all["runs"].size(), 3U * 8U);
    for (const auto& one : all["runs"]) {
        EXPECT_GT(one["rows_read"], 0);
        EXPECT_LE(one["rows_read"], one["rows"]);
    }
}

TEST_F(FeaturesCommandTest, SimulateRunsThePoliciesThatAreNamed) {
    const Printed printed =
        simulate({trace_, "--cache", "10%", "--policy", "window", "fifo", "--json", "-"});
    const auto all = nlohmann::json::parse(printed.out);
    ASSERT_EQ(all["runs"].size(), 2U);
    EXPECT_LT(all["runs"][0]["rows_read"], all["runs"][1]["rows_read"]);
    EXPECT_THAT(printed.err, testing::HasSubstr("fifo"));
}

TEST_F(FeaturesCommandTest, SimulateRefusesWrongWords) {
    const auto refused = [&](const std::vector<std::string>& words, const std::string& reason) {
        const Printed printed = simulate(words);
        EXPECT_EQ(printed.status, 2) << printed.out;
        EXPECT_THAT(printed.err, testing::HasSubstr(reason));
    };
    refused({}, "trace is required");
    refused({trace_, "--cache", "5x"}, "--cache: got '5x'; expected rows");
    refused({trace_, "--cache", "101%"}, "--cache: got '101%'");
    refused({trace_, "--cache", "-1"}, "--cache");
    refused({trace_, "--cache", "nan%"}, "--cache: got 'nan%'");
    refused({trace_, "--cache", "1.5"}, "--cache: got '1.5'");
    refused({trace_, "--policy", "windwo"}, "did you mean 'window'?");
    const Printed late = simulate({trace_, "--policy", "lru", "nope"});
    EXPECT_EQ(late.status, 2);
    EXPECT_EQ(late.out, "");  // lru has not run
    EXPECT_THAT(late.err, testing::HasSubstr("policy: got 'nope'; expected one of "));
    refused({trace_, "--window", "31"}, "--window: got '31'; expected a whole number, 0 to 30");
    refused({trace_, "--rows", "10"}, "--rows: got 10, and the trace has row 4999");
    refused({trace_, "--rows", "-1"}, "--rows: got '-1'; expected a whole number, 1 or more");
    refused({trace_, "--batch", "-1"}, "--batch: got '-1'; expected a whole number, 1 or more");
    refused({trace_, "--batch", "0"}, "--batch: got '0'");
    refused({trace_, "--warm-up", "-1"}, "--warm-up: got '-1'; expected a whole number, 0 or more");
    refused({trace_, "--window", "1.5"}, "--window: got '1.5'; expected a whole number, 0 to 30");
    refused({trace_, "--rows", "9223372036854775807", "--cache", "5%"},
            "--cache: 5% of 9223372036854775807 rows are 461168601842738816; expected at most "
            "1073741824");
    EXPECT_EQ(simulate({folder_ / "missing"}).status, 1);
    std::ofstream(folder_ / "odd") << "12345";
    refused({folder_ / "odd"}, "expected a multiple of 8");
}

}  // namespace
}  // namespace penstock::cli
