// SPDX-License-Identifier: Apache-2.0
// `penstock weights plan`: its text, its JSON, and what it refuses.
#include "cli/program.hpp"
#include "support/temp_folder.hpp"
#include "support/text_files.hpp"

#include <penstock/state_file.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {
namespace {

using testing::HasSubstr;

class WeightsCliTest : public testing::Test {
protected:
    WeightsCliTest() {
        const auto engine = std::make_shared<Engine>();
        State state;
        std::vector<std::vector<std::byte>> data;
        const auto add = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
            data.emplace_back(2 * rows * columns);
            state.tensors.push_back({name, "BF16", {rows, columns}, data.back()});
        };
        add("model.embed_tokens.weight", 4000, 100);
        for (int layer = 0; layer < 12; ++layer) {
            add(fmt::format("model.layers.{}.mlp.weight", layer), 2000, 100);
        }
        add("lm_head.weight", 4000, 100);
        save_file(engine, folder_ / "model.safetensors", state);
    }
    [[nodiscard]] Outcome plan(std::vector<std::string> more) const {
        std::vector<std::string> words{"weights", "plan", folder_.path()};
        words.insert(words.end(), more.begin(), more.end());
        return run_cli(words);
    }

    support::TempFolder folder_;
};

TEST_F(WeightsCliTest, ANameMeansAModelInTheLocalCacheOfHuggingFace) {
    const std::string model = folder_ / "models--me--tiny";
    std::filesystem::create_directories(model + "/refs");
    std::filesystem::create_directories(model + "/snapshots/abc");
    std::ofstream(model + "/refs/main") << "abc";
    std::filesystem::create_symlink(folder_ / "model.safetensors",
                                    model + "/snapshots/abc/model.safetensors");
    const auto in_cache = [this] { ::setenv("HF_HUB_CACHE", folder_.path().c_str(), 1); };
    const Outcome named = run_cli({"weights", "plan", "me/tiny", "--memory", "2MiB"}, in_cache);
    EXPECT_EQ(named.status, 0) << named.err;
    const Outcome other = run_cli({"weights", "plan", "me/other", "--memory", "2MiB"}, in_cache);
    EXPECT_EQ(other.status, 1);
    EXPECT_THAT(other.err, HasSubstr("me/other"));
}

TEST_F(WeightsCliTest, TheTextHasUnitsAndSeconds) {
    const Outcome found = plan({"--memory", "3MB", "--rate", "1GB/s"});
    EXPECT_EQ(found.status, 0) << found.err;
    for (const char* text :
         {"14 tensors, 1 file", "read by row: model.embed_tokens.weight", "model.layers.0 to 11",
          "lm_head", "at 1 GB/s: at least", "the least that works is"}) {
        EXPECT_THAT(found.out, HasSubstr(text));
    }
    std::istringstream lines(found.out);
    std::string line;
    std::getline(lines, line);  // the path, however long
    while (std::getline(lines, line)) {
        EXPECT_LE(line.size(), 80U) << line;
    }
}

TEST_F(WeightsCliTest, TheJsonHasItAllTimed) {
    const Outcome found =
        plan({"--memory", "3MB", "--rate", "measured", "--compute", "2", "--json", "-"});
    EXPECT_EQ(found.status, 0) << found.err;
    const auto json = nlohmann::json::parse(found.out);
    EXPECT_EQ(json["weight_bytes"], 2 * (2 * 400'000 + 12 * 200'000));
    EXPECT_LE(json["used_bytes"], 3'000'000);
    EXPECT_EQ(json["memory_bytes"], 3'000'000);
    EXPECT_EQ(json["units"].size(), 13U);
    std::uint64_t read = 0;
    for (const auto& unit : json["units"]) {
        read += unit["read_bytes"].get<std::uint64_t>();
    }
    EXPECT_EQ(json["read_bytes"], read);
    EXPECT_EQ(json["rows"], nlohmann::json({"model.embed_tokens.weight"}));
    EXPECT_GT(json["rate_bytes_per_second"], 0);
    EXPECT_EQ(json["rate_is_measured"], true);
    EXPECT_NEAR(json["seconds_a_token"].get<double>(), 2, 0.4);
    EXPECT_THAT(found.err, HasSubstr("(measured)"));
}

TEST_F(WeightsCliTest, ComputingIsMeasuredTimed) {
    const Outcome found = plan({"--memory", "3MB", "--compute", "measured", "--json", "-"});
    EXPECT_EQ(found.status, 0) << found.err;
    const auto json = nlohmann::json::parse(found.out);
    EXPECT_EQ(json["token_bytes"], 2 * (400'000 + 12 * 200'000));  // not the embedding
    EXPECT_EQ(json["compute_is_measured"], true);
    EXPECT_GT(json["compute_seconds"], 0);
    EXPECT_LT(json["compute_seconds"], 1);
    EXPECT_FALSE(json.contains("seconds_a_token"));
    EXPECT_TRUE(json["experts"].is_null());
    EXPECT_THAT(found.err, HasSubstr("or more (measured)"));
}

TEST_F(WeightsCliTest, OfAMixtureExpertsAreCountedThatATokenUses) {
    State state;
    const std::vector<std::byte> data(200'000);
    for (int layer = 0; layer < 4; ++layer) {
        const std::string name = fmt::format("model.layers.{}.", layer);
        state.tensors.push_back({name + "attention.weight", "BF16", {1000, 100}, data});
        for (int expert = 0; expert < 8; ++expert) {
            state.tensors.push_back({fmt::format("{}mlp.experts.{}.up.weight", name, expert),
                                     "BF16",
                                     {1000, 100},
                                     data});
        }
    }
    const support::TempFolder mixture;
    save_file(std::make_shared<Engine>(), mixture / "model.safetensors", state);
    const auto read = [&](std::vector<std::string> more) {
        std::vector<std::string> words{"weights", "plan", mixture.path(), "--memory", "3MB",
                                       "--json",  "-"};
        words.insert(words.end(), more.begin(), more.end());
        const Outcome found = run_cli(words);
        EXPECT_EQ(found.status, 0) << found.err;
        EXPECT_THAT(found.err, HasSubstr("of 32 experts, of which"));
        std::istringstream lines(found.err);
        std::string line;
        std::getline(lines, line);
        while (std::getline(lines, line)) {
            EXPECT_LE(line.size(), 80U) << line;
        }
        return nlohmann::json::parse(found.out);
    };
    const auto all = read({});
    EXPECT_EQ(all["experts"]["chosen"], 32);
    EXPECT_EQ(read({"--experts", "2"})["experts"]["chosen"], 8);
    test::write_text(mixture / "config.json", R"({"num_experts_per_tok": 1})");
    const auto one = read({});
    EXPECT_EQ(one["experts"]["chosen"], 4);
    EXPECT_NEAR(one["read_bytes"].get<double>(), all["read_bytes"].get<double>() / 8, 100);
    EXPECT_LE(one["used_bytes"], 3'000'000);
}

TEST_F(WeightsCliTest, WhatIsRefused) {
    const Outcome small = plan({"--memory", "1kB"});
    EXPECT_EQ(small.status, 1);
    EXPECT_THAT(small.err, HasSubstr("the least that works is"));
    for (const auto& [words, message] :
         std::vector<std::pair<std::vector<std::string>, std::string>>{
             {{"--memory", "much"}, "--memory: got 'much'; expected bytes, such as 4096"},
             {{"--memory", "3MB", "--rate", "fast"}, "expected bytes a second, such as 6.8GB/s"},
             {{"--memory", "3MB", "--compute", "much"}, "0 to 1000000 seconds, or measured"},
             {{"--memory", "3MB", "--compute", "-1"}, "0 to 1000000 seconds, or measured"},
             {{"--memory", "3MB", "--compute", "nan"}, "0 to 1000000 seconds, or measured"},
             {{"--memory", "3MB", "--experts", "0"}, "--experts"},
             {{"--memory", "3MB", "--experts", "010"}, "a whole number, 1 to 1048576"},
             {{"--memory", "3MB", "--slots", "1"}, "--slots"},
             {{}, "--memory"}}) {
        const Outcome wrong = plan(words);
        EXPECT_EQ(wrong.status, 2) << message;
        EXPECT_THAT(wrong.err, HasSubstr(message));
        EXPECT_EQ(wrong.out, "") << message;
    }
    EXPECT_EQ(run_cli({"weights", "plan", folder_ / "nothing", "--memory", "3MB"}).status, 1);
    EXPECT_THAT(run_cli({"weights"}).err, HasSubstr("Try: penstock weights --help"));
    EXPECT_THAT(run_cli({"weihgts"}).err, HasSubstr("did you mean 'weights'?"));
}

}  // namespace
}  // namespace penstock::cli
