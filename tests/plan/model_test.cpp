// SPDX-License-Identifier: Apache-2.0
#include <penstock/plan.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <string>

namespace penstock::plan {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

std::string message_of(std::string_view config) {
    try {
        return fmt::format("no error; {} parameters", read_model(config).parameters);
    } catch (const Error& error) {
        return error.what();
    }
}

TEST(PlanModel, CountsDliosLlamasByItsFormula) {
    EXPECT_EQ(model_named("dlio-llama-7b").parameters, 6'738'415'616U);
    EXPECT_EQ(model_named("dlio-llama-8b").parameters, 8'030'261'248U);
    EXPECT_EQ(model_named("dlio-llama-70b").parameters, 69'882'617'856U);
    EXPECT_EQ(model_named("dlio-llama-405b").parameters, 405'853'388'800U);
    EXPECT_EQ(model_named("dlio-llama-1t").parameters, 1'183'035'102'480U);
    EXPECT_EQ(model_named("llama-3-70b").parameters, 70'553'706'496U);
}

TEST(PlanModel, EachNameIsAModelThatIsTheSumOfItsTensors) {
    for (const std::string& name : model_names()) {
        const ModelParameters model = model_named(name);
        EXPECT_EQ(model.name, name);
        EXPECT_FALSE(model.source.empty());
        std::uint64_t sum = 0;
        for (const TensorGroup& group : model.groups) {
            EXPECT_EQ(group.layers.empty(), group.place != TensorPlace::kLayer) << group.name;
            EXPECT_EQ(group.units == 0, group.split == TensorSplit::kWhole) << group.name;
            sum += group.parameters();
        }
        EXPECT_EQ(model.groups.empty() ? model.parameters : sum, model.parameters) << name;
    }
}

TEST(PlanModel, EachTypeIsAModelWithTransformersDefaults) {
    for (const std::string& type : model_types()) {
        const std::string config =
            type == "gemma3" ? R"({"model_type": "gemma3", "text_config": {"hidden_size": 2304},
                                             "vision_config": {"hidden_size": 768}})"
                             : fmt::format(R"({{"model_type": "{}"}})", type);
        const ModelParameters model = read_model(config);
        std::uint64_t sum = 0;
        for (const TensorGroup& group : model.groups) {
            sum += group.parameters();
        }
        EXPECT_EQ(sum, model.parameters) << type;
        // It says what it assumed: at least the sizes of the model.
        EXPECT_THAT(model.assumed, Contains(HasSubstr("transformers' default for"))) << type;
    }
}

// transformers 5.23 counts the same.
TEST(PlanModel, CountsNoDecoderWhereTheClassHasNone) {
    EXPECT_EQ(read_model(R"({"model_type": "t5", "architectures": ["T5EncoderModel"]})").parameters,
              35'330'816U);
    EXPECT_EQ(read_model(R"({"model_type": "t5", "architectures": ["T5Model"]})").parameters,
              60'506'624U);
}

TEST(PlanModel, SaysWhatItAssumed) {
    const ModelParameters model = read_model(
        R"({"model_type": "mistral", "hidden_size": 4096, "vocab_size": 32000,
            "num_hidden_layers": 32, "intermediate_size": 14336, "num_attention_heads": 32})");
    EXPECT_EQ(model.parameters, 7'241'732'096U);
    EXPECT_THAT(model.assumed, Contains(AllOf(HasSubstr("num_key_value_heads is not in the file"),
                                              HasSubstr("8"))));
    EXPECT_THAT(model.assumed, Contains(HasSubstr("tie_word_embeddings")));
    EXPECT_THAT(model.assumed, Contains(HasSubstr("architectures")));
}

TEST(PlanModel, RefusesFieldsByName) {
    const auto llama = [](const std::string& field) {
        return message_of(R"({"model_type": "llama", )" + field + "}");
    };
    EXPECT_THAT(llama(R"("hidden_size": -4096)"), HasSubstr("hidden_size is -4096; expected"));
    EXPECT_THAT(llama(R"("hidden_size": 0)"), HasSubstr("hidden_size is 0; expected"));
    EXPECT_THAT(llama(R"("hidden_size": 40.5)"), HasSubstr("hidden_size is 40.5; expected"));
    EXPECT_THAT(llama(R"("hidden_size": "4096")"), HasSubstr(R"(hidden_size is the text "4096")"));
    EXPECT_THAT(llama(R"("hidden_size": [4096])"), HasSubstr("hidden_size is a list"));
    EXPECT_THAT(llama(R"("hidden_size": {"a": 1})"), HasSubstr("hidden_size is an object"));
    EXPECT_THAT(llama(R"("hidden_size": true)"), HasSubstr("hidden_size is true"));
    EXPECT_THAT(llama(R"("hidden_size": 1e400)"), HasSubstr("beyond a double's range"));
    EXPECT_THAT(llama(R"("hidden_size": 18446744073709551615)"), HasSubstr("hidden_size"));
    EXPECT_THAT(llama(R"("num_hidden_layers": 4294967296)"), HasSubstr("num_hidden_layers"));
    EXPECT_THAT(llama(R"("num_attention_heads": 7, "num_key_value_heads": 3)"),
                HasSubstr("num_attention_heads is 7 and num_key_value_heads is 3"));
    EXPECT_THAT(llama(R"("attention_bias": 1)"), HasSubstr("attention_bias is 1; expected true"));
    EXPECT_THAT(llama(R"("hidden_size": 1099511627776, "intermediate_size": 1099511627776)"),
                HasSubstr("2^62 parameters"));
    EXPECT_THAT(message_of(R"({"model_type": "qwen3_moe", "mlp_only_layers": ["a"]})"),
                HasSubstr("mlp_only_layers"));
    EXPECT_THAT(
        message_of(R"({"model_type": "falcon", "hidden_size": 100, "num_attention_heads": 3})"),
        HasSubstr("multiple of num_attention_heads, 3"));
    EXPECT_THAT(message_of(R"({"model_type": "gemma3"})"), HasSubstr("text_config"));
}

// A program that computed a field in doubles wrote 64.0.
TEST(PlanModel, TakesWholeNumbersThatAreWrittenAsReals) {
    const auto parameters = [](const std::string& fields) {
        return read_model(R"({"model_type": "qwen3_moe", )" + fields + "}").parameters;
    };
    EXPECT_EQ(parameters(R"("hidden_size": 64.0)"), parameters(R"("hidden_size": 64)"));
    EXPECT_EQ(parameters(R"("hidden_size": 1e3)"), parameters(R"("hidden_size": 1000)"));
    EXPECT_EQ(parameters(R"("mlp_only_layers": [1.0, 3])"),
              parameters(R"("mlp_only_layers": [1, 3])"));
    const auto refused = [](const std::string& field) {
        return message_of(R"({"model_type": "qwen3_moe", )" + field + "}");
    };
    EXPECT_THAT(refused(R"("hidden_size": -64.0)"), HasSubstr("hidden_size is -64; expected"));
    EXPECT_THAT(refused(R"("hidden_size": 1e300)"), HasSubstr("hidden_size is 1e+300; expected"));
    for (const char* const list : {"[1.5]", "[1, -1]", "[null]", "[true]", "[[1]]", "[{}]"}) {
        EXPECT_THAT(refused(std::string("\"mlp_only_layers\": ") + list),
                    HasSubstr("mlp_only_layers is a list with"))
            << list;
    }
}

TEST(PlanModel, RefusesTypesThatItDoesNotKnow) {
    EXPECT_THAT(message_of(R"({"model_type": "lama"})"),
                AllOf(HasSubstr("\"lama\""), HasSubstr("did you mean llama?"), HasSubstr("gpt2")));
    EXPECT_THAT(message_of("{}"), HasSubstr("config.json has no model_type"));
    EXPECT_THAT(message_of(R"({"model_type": 3})"), HasSubstr("model_type is 3; expected a text"));
}

TEST(PlanModel, RefusesWhatIsNoConfig) {
    for (const char* text : {"", "[]", "3", "null", "\"llama\"", "{", "{\"a\"",
                             "{\"a\": 1, \"a\": 2}", "\xFF", "{\"model_type\": \"llama\"} x"}) {
        EXPECT_THAT(message_of(text), ::testing::Not(HasSubstr("no error"))) << text;
    }
    EXPECT_THAT(message_of(std::string(100'000, '[')), HasSubstr("it is a list"));
    std::string deep = R"({"model_type": "llama", "x": )";
    for (int i = 0; i < 1000; ++i) {
        deep += "{\"a\": ";
    }
    EXPECT_THAT(message_of(deep), HasSubstr("nested deeper"));
}

TEST(PlanModel, PassesOverWhatItDoesNotNeed) {
    const std::string plain = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})";
    const std::string full =
        R"({"rope": [[1, 2], {"a": [{"b": null}]}, "x"], "task": {"deep": {"deeper":
        {"model_type": "bert"}}}, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
        "id2label": {"0": "a", "1": "b"}, "x": [{"hidden_size": 3}, {"hidden_size": 4}]})";
    EXPECT_EQ(read_model(full).parameters, read_model(plain).parameters);
    EXPECT_EQ(read_model(plain).parameters, 124'439'808U);
}

// Each field with each odd value: an error with a text, or a count that is the sum of its tensors.
TEST(PlanModel, SurvivesOddValuesInEachField) {
    std::mt19937_64 random(7);
    const std::vector<std::string> fields{"hidden_size",
                                          "num_hidden_layers",
                                          "num_attention_heads",
                                          "num_key_value_heads",
                                          "head_dim",
                                          "intermediate_size",
                                          "vocab_size",
                                          "num_experts",
                                          "moe_intermediate_size",
                                          "mlp_only_layers",
                                          "decoder_sparse_step",
                                          "n_routed_experts",
                                          "q_lora_rank",
                                          "kv_lora_rank",
                                          "first_k_dense_replace",
                                          "architectures",
                                          "tie_word_embeddings",
                                          "n_embd",
                                          "n_layer",
                                          "d_model",
                                          "num_layers",
                                          "num_decoder_layers",
                                          "feed_forward_proj",
                                          "word_embed_proj_dim",
                                          "text_config",
                                          "vision_config",
                                          "num_kv_heads",
                                          "multi_query",
                                          "new_decoder_architecture"};
    const std::vector<std::string> values{"0",
                                          "1",
                                          "2",
                                          "7",
                                          "64",
                                          "4096",
                                          "1099511627776",
                                          "1099511627777",
                                          "18446744073709551615",
                                          "18446744073709551616",
                                          "-1",
                                          "1.5",
                                          "1e300",
                                          "null",
                                          "true",
                                          "\"\"",
                                          "\"gated-\"",
                                          "[]",
                                          "[0, 1]",
                                          "[-1]",
                                          "[[1]]",
                                          "{}",
                                          "{\"hidden_size\": 8, \"num_hidden_layers\": 2}",
                                          "[\"LlamaModel\"]"};
    const std::vector<std::string> types = model_types();
    for (int i = 0; i < 8'000; ++i) {
        std::string config = "{\"model_type\": \"" + types[random() % types.size()] + "\"";
        std::vector<std::string> order = fields;
        std::shuffle(order.begin(), order.end(), random);
        for (std::size_t n = random() % 5; n > 0; --n) {
            config += ", \"" + order[n] + "\": " + values[random() % values.size()];
        }
        config += "}";
        try {
            const ModelParameters model = read_model(config);
            std::uint64_t sum = 0;
            for (const TensorGroup& group : model.groups) {
                sum += group.parameters();
            }
            ASSERT_EQ(sum, model.parameters) << config;
            ASSERT_LE(model.parameters, 1ULL << 62U) << config;
        } catch (const Error& error) {
            ASSERT_GT(std::string(error.what()).size(), 20U) << config;
        }
    }
}

TEST(PlanModel, NamesAreCountsToo) {
    EXPECT_EQ(model_named("13b").parameters, 13'000'000'000U);
    EXPECT_EQ(model_named("1.5T").parameters, 1'500'000'000'000U);
    EXPECT_EQ(model_named("70553706496").parameters, 70'553'706'496U);
    for (const char* name : {"", "-3b", "nan", "0", "1e400b", "3x", "llama-3-70", "\xFF\xFE"}) {
        EXPECT_THROW((void)model_named(name), Error) << name;
    }
}

}  // namespace
}  // namespace penstock::plan
