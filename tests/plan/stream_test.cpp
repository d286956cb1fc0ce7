// SPDX-License-Identifier: Apache-2.0
#include <penstock/plan.hpp>

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <string>

namespace penstock::plan {
namespace {

using ::testing::HasSubstr;

double tokens(const StreamOptions& options) {
    return stream(options).at("tokens_per_second").value;
}

TEST(PlanStream, PublishedRunsAreNextToTheirBounds) {
    const auto of_preset = [](const char* name) {
        StreamOptions options;
        options.preset = name;
        return stream(options);
    };
    EXPECT_NEAR(of_preset("gen4-4-gds").at("tokens_per_second").value, 6.9, 0.05);
    EXPECT_NEAR(of_preset("gen5-4-gds").at("tokens_per_second").value, 19.1, 0.05);
    EXPECT_NEAR(of_preset("gen5-8-gds").at("tokens_per_second").value, 33.4, 0.05);
    EXPECT_NEAR(of_preset("gen5-8-gds").at("share_of_bound").value, 0.78, 0.005);
    EXPECT_NEAR(of_preset("sglang-gds").at("published_tokens_per_second").value, 23.5, 0.05);
}

TEST(PlanStream, ResidencyIsWorthMoreThanTheDisk) {
    StreamOptions options;
    options.model = "llama-3-70b";
    options.rate = 48.0 * 1024 * 1024 * 1024;
    options.batch = 96;
    EXPECT_NEAR(tokens(options), 35, 0.1);
    options.resident_device = 80e9;
    EXPECT_NEAR(tokens(options), 81, 0.1);
    options.resident_device = 100e9;
    EXPECT_NEAR(tokens(options), 120, 0.5);
}

TEST(PlanStream, MoreOfEverythingIsNeverSlower) {
    std::mt19937_64 random(4);
    std::uniform_real_distribution<double> any(0.001, 1);
    for (int i = 0; i < 1000; ++i) {
        StreamOptions options;
        options.model = "8b";
        options.rate = 1e11 * any(random);
        options.link = 1e11 * any(random);
        options.flops = 1e15 * any(random);
        options.batch = 1 + static_cast<double>(random() % 100);
        options.prompt = 1 + static_cast<double>(random() % 1000);
        options.generate = 1 + static_cast<double>(random() % 1000);
        options.resident = 7e9 * any(random);
        options.resident_device = 7e9 * any(random);
        const double before = tokens(options);
        EXPECT_GT(before, 0);
        for (const auto better :
             {&StreamOptions::rate, &StreamOptions::link, &StreamOptions::flops}) {
            StreamOptions other = options;
            other.*better = *(other.*better) * 2;
            EXPECT_GE(tokens(other), before);
            EXPECT_LE(tokens(other), before * 2 * (1 + 1e-12));
        }
        StreamOptions other = options;
        other.resident += 1e9;
        EXPECT_GE(tokens(other), before);
        other = options;
        other.batch = *options.batch + 1;
        EXPECT_GE(tokens(other), before * (1 - 1e-12));
        other = options;
        other.prompt = *options.prompt + 1;
        EXPECT_LE(tokens(other), before * (1 + 1e-12));
    }
}

StreamOptions of_config(const char* config) {
    StreamOptions options;
    options.config = config;
    options.rate = 1e9;
    options.batch = 3;
    options.prompt = 1000;
    options.generate = 25;
    return options;
}

// Bytes of keys and values of a sequence of 1,024 tokens, by hand.
TEST(PlanStream, KeysAndValuesFollowTheConfig) {
    struct Row {
        const char* config;
        double bytes;
    };
    for (const Row& row : {
             Row{R"({"model_type": "llama", "num_key_value_heads": 8})",
                 32.0 * 8 * 128 * 2 * 2 * 1024},
             Row{R"({"model_type": "gpt2"})", 12.0 * 768 * 2 * 2 * 1024},
             Row{R"({"model_type": "falcon"})", 32.0 * 64 * 2 * 2 * 1024},  // one key for all heads
             Row{R"({"model_type": "mistral", "sliding_window": 100})",
                 32.0 * 8 * 128 * 2 * 2 * 100},
             Row{R"({"model_type": "mistral", "sliding_window": null})",
                 32.0 * 8 * 128 * 2 * 2 * 1024},
             // Every sixth layer keeps all tokens.
             Row{R"({"model_type": "gemma3_text", "sliding_window": 512})",
                 4.0 * 256 * 2 * 2 * (22 * 512 + 4 * 1024)},
             Row{R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 16,
                     "max_window_layers": 30})",
                 32.0 * 128 * 2 * 2 * (2 * 16 + 30 * 1024)},
             Row{R"({"model_type": "qwen2", "sliding_window": 16})",
                 32.0 * 32 * 128 * 2 * 2 * 1024},
             Row{R"({"model_type": "gpt_oss", "num_hidden_layers": 3, "sliding_window": 16,
                     "layer_types": ["full_attention", "sliding_attention", "full_attention"]})",
                 8.0 * 64 * 2 * 2 * (16 + 2 * 1024)},
             Row{R"({"model_type": "deepseek_v3"})", 61.0 * (512 + 64) * 2 * 1024},
         }) {
        const Answer answer = stream(of_config(row.config));
        EXPECT_DOUBLE_EQ(answer.at("kv_tokens").value, 1024);
        EXPECT_DOUBLE_EQ(answer.at("kv_cache_bytes").value, 3 * row.bytes) << row.config;
    }
}

TEST(PlanStream, KeysAndValuesTakeMemoryFromWeights) {
    StreamOptions options;
    options.model = "llama-3-8b";
    options.rate = 3e9;
    options.batch = 16;
    options.prompt = 2048;
    options.generate = 33;
    options.memory = 12e9;
    const double cache = 16.0 * 2080 * 131072;
    Answer answer = stream(options);
    EXPECT_DOUBLE_EQ(answer.at("kv_bytes_per_token").value, 131072);
    EXPECT_DOUBLE_EQ(answer.at("kv_cache_bytes").value, cache);
    EXPECT_DOUBLE_EQ(answer.at("resident_bytes").value, 12e9 - cache);
    EXPECT_DOUBLE_EQ(answer.at("streamed_bytes").value, 2.0 * 8'030'261'248 - (12e9 - cache));
    options.memory_device = 6e9;  // holds them
    answer = stream(options);
    EXPECT_DOUBLE_EQ(answer.at("resident_device_bytes").value, 6e9 - cache);
    EXPECT_DOUBLE_EQ(answer.at("resident_bytes").value,
                     std::min(12e9, 2.0 * 8'030'261'248 - (6e9 - cache)));
    options.kv_host = true;
    answer = stream(options);
    EXPECT_DOUBLE_EQ(answer.at("resident_device_bytes").value, 6e9);
    EXPECT_DOUBLE_EQ(answer.at("resident_bytes").value, 12e9 - cache);
    options.kv_bytes_per_element = 1;
    EXPECT_DOUBLE_EQ(stream(options).at("kv_cache_bytes").value, cache / 2);
}

TEST(PlanStream, MoreSequencesNeverLeaveMoreWeights) {
    std::mt19937_64 random(6);
    for (int i = 0; i < 200; ++i) {
        StreamOptions options;
        options.model = "llama-3-8b";
        options.rate = 1e9;
        options.memory = 1e9 + static_cast<double>(random() % 14'000'000'000ULL);
        options.batch = 1 + static_cast<double>(random() % 8);
        options.prompt = 1 + static_cast<double>(random() % 500);
        const Answer answer = stream(options);
        StreamOptions more = options;
        more.batch = *options.batch + 1;
        EXPECT_LE(stream(more).at("resident_bytes").value, answer.at("resident_bytes").value);
        more = options;
        more.memory = *options.memory + 1e9;
        EXPECT_GE(stream(more).at("resident_bytes").value, answer.at("resident_bytes").value);
        EXPECT_GE(tokens(more), tokens(options) * (1 - 1e-12));
    }
}

TEST(PlanStream, TheEndsOfARateAreThoseOfTheTokens) {
    StreamOptions options;
    options.model = "8b";
    options.rate = 2e9;
    options.rate_low = 1e9;
    options.rate_high = 4e9;
    const Answer answer = stream(options);
    EXPECT_DOUBLE_EQ(answer.at("tokens_per_second_low").value,
                     answer.at("tokens_per_second").value / 2);
    EXPECT_DOUBLE_EQ(answer.at("tokens_per_second_high").value,
                     answer.at("tokens_per_second").value * 2);
}

std::string message_of(const StreamOptions& options) {
    try {
        (void)stream(options);
        return "no error";
    } catch (const Error& error) {
        return error.what();
    }
}

TEST(PlanStream, RefusesByName) {
    StreamOptions options;
    EXPECT_THAT(message_of(options), HasSubstr("rate"));
    options.rate = 1e9;
    EXPECT_THAT(message_of(options), HasSubstr("config.json"));
    options.model = "8b";
    options.resident = 17e9;
    EXPECT_THAT(message_of(options), HasSubstr("resident"));
    options.resident = 16e9;
    EXPECT_THAT(message_of(options), HasSubstr("all weights are resident"));
    options.preset = "gen5-8";
    EXPECT_THAT(message_of(options), HasSubstr("gen5-8-gds"));
    // A published figure is shown next to the bound of the same reads alone.
    options = {};
    options.preset = "gen5-8-gds";
    options.resident = 1e9;
    EXPECT_THROW((void)stream(options).at("published_tokens_per_second"), Error);
}

TEST(PlanStream, MemoryThatCannotBeDividedIsRefused) {
    StreamOptions options = of_config(R"({"model_type": "llama"})");
    options.memory = 1e9;
    EXPECT_THAT(message_of(options), HasSubstr("the keys and values of the batch take"));
    options.memory = 64e9;
    options.resident = 1;
    EXPECT_THAT(message_of(options), HasSubstr("resident: got this and memory"));
    options.resident = 0;
    options.kv_bytes_per_element = 1;
    options.kv_bytes_per_token = 1;
    EXPECT_THAT(message_of(options), HasSubstr("kv_bytes_per_token: got this and"));
    options = of_config(R"({"model_type": "bert"})");
    options.memory = 64e9;
    EXPECT_THAT(message_of(options), HasSubstr("keys and values of bert are not known"));
    options.kv_bytes_per_token = 1000;
    EXPECT_THAT(message_of(options), HasSubstr("all weights are resident"));
    options.kv_host = true;
    options.memory.reset();
    options.memory_device = 64e9;
    EXPECT_THAT(message_of(options), HasSubstr("kv_host: expected memory"));
    options = of_config(R"({"model_type": "mistral", "sliding_window": -1})");
    EXPECT_THAT(message_of(options), HasSubstr("sliding_window is -1"));
    options = of_config(R"({"model_type": "gpt_oss", "layer_types": ["full_attention"]})");
    EXPECT_THAT(message_of(options), HasSubstr("layer_types has 1 names"));
}

}  // namespace
}  // namespace penstock::plan
