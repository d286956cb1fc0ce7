// SPDX-License-Identifier: Apache-2.0
#include <penstock/plan.hpp>

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace penstock::plan {
namespace {

using ::testing::HasSubstr;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

CheckpointOptions of_model(const std::string& name) {
    CheckpointOptions options;
    options.model = name;
    return options;
}

template <typename Options, typename Call>
std::string message_of(Call call, const Options& options) {
    try {
        (void)call(options);
        return "no error";
    } catch (const Error& error) {
        return error.what();
    }
}

TEST(PlanCheckpoint, GivesTheFiguresOfTheTalk) {
    CheckpointOptions options = of_model("175b");
    options.interval = 7200;
    const Answer answer = checkpoint(options);
    EXPECT_DOUBLE_EQ(answer.at("checkpoint_bytes").value, 2450e9);
    EXPECT_NEAR(answer.at("write_bytes_per_second").value, 6.81e9, 0.01e9);
    EXPECT_DOUBLE_EQ(answer.at("stall_share").value, 0.05);
}

TEST(PlanCheckpoint, GivesDliosSizes) {
    EXPECT_NEAR(checkpoint(of_model("dlio-llama-8b")).at("checkpoint_bytes").value / kGiB, 104.7,
                0.05);
    EXPECT_NEAR(checkpoint(of_model("dlio-llama-70b")).at("checkpoint_bytes").value / kGiB, 911.2,
                0.5);
    EXPECT_NEAR(checkpoint(of_model("dlio-llama-405b")).at("checkpoint_bytes").value / kGiB, 5292,
                1);
    EXPECT_NEAR(checkpoint(of_model("dlio-llama-1t")).at("checkpoint_bytes").value / kGiB, 15425,
                1);
}

TEST(PlanCheckpoint, EachOptimizerIsTheSumOfItsParts) {
    for (const OptimizerBytes& optimizer : optimizers()) {
        CheckpointOptions options = of_model("llama-3-8b");
        options.optimizer = optimizer.name;
        const double each = checkpoint(options).at("checkpoint_bytes").value /
                            checkpoint(options).at("parameters").value;
        const double sum = optimizer.weights + optimizer.master + optimizer.states;
        // Those whose states follow the shapes have little more than their table says.
        EXPECT_GE(each, sum * (1 - 1e-12)) << optimizer.name;
        EXPECT_LE(each, sum + 0.01) << optimizer.name;
    }
}

TEST(PlanCheckpoint, FilesOfAllRanksHaveEverything) {
    std::mt19937_64 random(3);
    for (int i = 0; i < 200; ++i) {
        CheckpointOptions options = of_model(random() % 2 != 0 ? "llama-3-8b" : "13b");
        options.tensor = std::exp2(static_cast<double>(random() % 4));
        options.zero = static_cast<double>(random() % 4);
        options.pipeline = options.zero >= 2 ? 1 : 1 + static_cast<double>(random() % 9);
        options.data = 1 + static_cast<double>(random() % 9);
        const Answer answer = checkpoint(options);
        const double state = answer.at("checkpoint_bytes").value;
        const double files = answer.at("files_bytes").value;
        const double ranks = answer.at("ranks").value;
        EXPECT_DOUBLE_EQ(ranks, *options.tensor * *options.pipeline * *options.data);
        // Copies of norms, and padding to equal shares.
        EXPECT_GE(files, state * (1 - 1e-12));
        EXPECT_LE(files, state * 1.001 + 14 * 64 * ranks);
        EXPECT_GE(answer.at("rank_bytes").value * answer.at("writing_ranks").value,
                  files * (1 - 1e-9));
        EXPECT_LE(answer.at("writing_ranks").value, ranks);
        if (options.zero >= 1) {
            EXPECT_DOUBLE_EQ(answer.at("writing_ranks").value, ranks);
        } else {
            EXPECT_DOUBLE_EQ(answer.at("writing_ranks").value, ranks / *options.data);
        }
    }
}

TEST(PlanCheckpoint, RanksMustDivideTheLayout) {
    CheckpointOptions options = of_model("llama-3-70b");
    options.tensor = 7;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("tensor: got 7"));
    options.tensor = 8;
    options.pipeline = 81;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("pipeline: got 81"));
    options.pipeline = 16;
    options.ranks = 1000;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("expected 896 or 1024"));
    options.ranks = 1024;
    EXPECT_DOUBLE_EQ(checkpoint(options).at("ranks").value, 1024);
    options.data = 4;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("ranks: got 1024"));
    options.data = 8;
    options.zero = 3;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("zero: got 3 with pipeline 16"));
    options.zero = 4;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("zero: got 4"));
    options = of_model("llama-3-8b");
    options.tensor = 9e15;
    options.pipeline = 9e15;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("tensor x pipeline"));
    options = of_model("llama-3-8b");
    options.optimizer = "adafactor";
    options.data = 2;
    options.zero = 1;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("zero: got 1 with optimizer adafactor"));
    options.optimizer = "adam-8bit";
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("bytes_per_parameter 8.03"));
}

constexpr const char* kMixture =
    R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 96,
        "num_hidden_layers": 6, "intermediate_size": 160, "moe_intermediate_size": 48,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 12, "num_experts": 8,
        "decoder_sparse_step": 2, "vocab_size": 1000, "tie_word_embeddings": false})";

// The bytes that each rank of a stage writes, rank by rank, as Megatron-LM numbers them: a rank r
// has the part r % tensor of a dense tensor and is replica r / tensor; of experts it has the part
// r % expert_tensor of those of r / expert_tensor % experts, and is replica
// r / (expert_tensor * experts).
std::vector<double> written_by_ranks(const ModelParameters& model, const CheckpointOptions& options,
                                     double weights, double others) {
    const auto number = [](double value) { return static_cast<std::uint64_t>(value); };
    const std::uint64_t tensor = number(*options.tensor);
    const std::uint64_t ranks = tensor * number(*options.data);
    const std::uint64_t expert_tensor = number(options.expert_tensor.value_or(*options.tensor));
    const std::uint64_t experts = number(*options.experts);
    double dense = 0;  // elements of a rank
    double routed = 0;
    for (const TensorGroup& group : model.groups) {
        const bool expert = group.in_a_layer > 1;
        const std::uint64_t by = expert ? expert_tensor : tensor;
        double each = static_cast<double>(group.rows * group.columns);
        if (group.split == TensorSplit::kVocabulary) {
            each = static_cast<double>((group.units + by - 1) / by * group.columns);
        } else if (group.split != TensorSplit::kWhole) {
            each /= static_cast<double>(
                group.split == TensorSplit::kKeyHeads ? std::min(by, group.units) : by);
        }
        (expert ? routed : dense) += each * static_cast<double>(group.tensors()) /
                                     (expert ? static_cast<double>(experts) : 1);
    }
    const bool divides = options.zero >= 1;
    const auto share = [&](double elements, std::uint64_t replicas) {
        return divides ? std::ceil(elements / static_cast<double>(replicas)) : elements;
    };
    std::vector<double> out(ranks);
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        const bool first = rank / tensor == 0;
        const bool first_of_experts = rank / (expert_tensor * experts) == 0;
        out[rank] += (first ? weights * dense : 0) + (first_of_experts ? weights * routed : 0);
        out[rank] += divides || first ? others * share(dense, ranks / tensor) : 0;
        out[rank] += divides || first_of_experts
                         ? others * share(routed, ranks / (expert_tensor * experts))
                         : 0;
    }
    return out;
}

TEST(PlanCheckpoint, ExpertParallelismIsThatOfEachRank) {
    const ModelParameters model = read_model(kMixture);
    std::mt19937_64 random(8);
    const auto power = [&](std::uint64_t below) {
        return std::exp2(static_cast<double>(random() % below));
    };
    int asked = 0;
    for (int i = 0; i < 300; ++i) {
        CheckpointOptions options;
        options.config = kMixture;
        options.tensor = power(3);
        options.data = power(5);
        options.experts = power(4);
        if (random() % 2 != 0) {
            options.expert_tensor = power(3);
        }
        options.zero = static_cast<double>(random() % 3);
        const double product = *options.experts * options.expert_tensor.value_or(*options.tensor);
        if (product > *options.tensor * *options.data) {
            EXPECT_THAT(message_of(checkpoint, options), HasSubstr("divides tensor x data"));
            continue;
        }
        ++asked;
        const Answer answer = checkpoint(options);
        const std::vector<double> ranks = written_by_ranks(model, options, 2, 12);
        EXPECT_DOUBLE_EQ(answer.at("rank_bytes").value,
                         *std::max_element(ranks.begin(), ranks.end()));
        EXPECT_DOUBLE_EQ(answer.at("files_bytes").value,
                         std::accumulate(ranks.begin(), ranks.end(), 0.0));
        EXPECT_DOUBLE_EQ(answer.at("writing_ranks").value,
                         static_cast<double>(std::count_if(ranks.begin(), ranks.end(),
                                                           [](double one) { return one > 0; })));
    }
    EXPECT_GT(asked, 100);
}

TEST(PlanCheckpoint, ExpertsThatCannotBeDividedAreRefused) {
    CheckpointOptions options;
    options.config = kMixture;
    options.data = 9;
    options.experts = 3;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("experts: got 3; a layer of qwen3_moe"));
    options.data = 8;
    options.experts = 8;
    options.zero = 3;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("zero: got 3 with experts"));
    options = of_model("llama-3-8b");
    options.data = 8;
    options.experts = 8;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("llama-3-8b has no experts"));
    options = of_model("13b");
    options.data = 8;
    options.experts = 8;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("only the number of parameters"));
}

// States of a rank's own part of each tensor, from the shapes of Llama-3-8B, by hand.
TEST(PlanCheckpoint, StatesByShapeAreThoseOfARanksPart) {
    CheckpointOptions options = of_model("llama-3-8b");
    options.tensor = 4;
    options.optimizer = "adafactor";
    const double layer = 4 * ((1024 + 4096) + 2 * (256 + 4096) + (4096 + 1024)  // q, k and v, o
                              + 2 * (3584 + 4096) + (4096 + 3584)               // gate and up, down
                              + 2 * 4096);                                      // norms
    const double ends = 4 * (2 * (32064 + 4096) + 4096);
    const double elements = 32.0 * (2 * 1024 * 4096 + 2 * 256 * 4096 + 3 * 3584 * 4096 + 2 * 4096) +
                            2.0 * 32064 * 4096 + 4096;
    EXPECT_DOUBLE_EQ(checkpoint(options).at("rank_bytes").value, 6 * elements + 32 * layer + ends);
    options.optimizer = "adam-8bit";
    // All matrices are multiples of 256 elements; norms have 4,096, the least that has bytes.
    EXPECT_DOUBLE_EQ(checkpoint(options).at("rank_bytes").value, elements * (2 + 2 + 8.0 / 256));
    options.data = 5;  // replica 0 writes
    EXPECT_DOUBLE_EQ(checkpoint(options).at("files_bytes").value,
                     4 * elements * (2 + 2 + 8.0 / 256));
}

TEST(PlanCheckpoint, AStorageIsEnoughOrNot) {
    CheckpointOptions options = of_model("175b");
    options.interval = 7200;
    const auto note_of = [&](double rate, double low, double high) {
        options.storage = rate;
        options.storage_low = low;
        options.storage_high = high;
        const Answer answer = checkpoint(options);
        EXPECT_DOUBLE_EQ(answer.at("storage_seconds").value, 2450e9 / rate);
        EXPECT_DOUBLE_EQ(answer.at("storage_seconds_low").value, 2450e9 / high);
        EXPECT_DOUBLE_EQ(answer.at("storage_seconds_high").value, 2450e9 / low);
        return answer.notes[0];
    };
    EXPECT_THAT(note_of(8e9, 7e9, 9e9), HasSubstr("it is enough"));
    EXPECT_THAT(note_of(6.8e9, 6e9, 7e9), HasSubstr("cannot be said"));
    EXPECT_THAT(note_of(5e9, 4e9, 6e9), HasSubstr("it is not enough: durable writes bind"));
    options.storage.reset();
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("storage_low and storage_high need"));
    options.storage = 1;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("low <= rate <= high"));
}

TEST(PlanRestore, AStorageIsEnoughOrNot) {
    RestoreOptions options;
    options.model = "175b";
    options.copies = 16;
    options.storage = 100e9;
    const Answer answer = restore(options);
    EXPECT_DOUBLE_EQ(answer.at("storage_seconds").value, 16 * 2450e9 / 100e9);
    EXPECT_THAT(answer.notes, testing::Contains(HasSubstr("not enough: reads in sequence bind")));
    options.broadcast = true;
    EXPECT_THAT(restore(options).notes, testing::Contains(HasSubstr("it is enough")));
}

TEST(PlanCheckpoint, MoreNeverNeedsLess) {
    std::mt19937_64 random(5);
    std::uniform_real_distribution<double> any(1, 1e6);
    for (int i = 0; i < 300; ++i) {
        CheckpointOptions options;
        options.model = std::to_string(1000 + random() % 1'000'000'000'000ULL);
        options.interval = any(random);
        options.share = any(random) / 1e6;
        options.keep = 1 + static_cast<double>(random() % 100);
        options.capacity = any(random) * 1e9;
        const Answer answer = checkpoint(options);
        const double rate = answer.at("write_bytes_per_second").value;
        CheckpointOptions more = options;
        more.model = std::to_string(std::stoull(options.model) * 2);
        EXPECT_NEAR(checkpoint(more).at("write_bytes_per_second").value / rate, 2, 1e-9);
        more = options;
        more.share = *options.share / 2;
        EXPECT_GT(checkpoint(more).at("write_bytes_per_second").value, rate);
        more = options;
        more.keep += 1;
        EXPECT_GT(checkpoint(more).at("room_bytes").value, answer.at("room_bytes").value);
        more = options;
        more.interval = *options.interval * 2;
        EXPECT_LT(checkpoint(more).at("drive_writes_per_day").value,
                  answer.at("drive_writes_per_day").value);
    }
}

TEST(PlanCheckpoint, OverlappedHasTheWholeInterval) {
    CheckpointOptions options = of_model("175b");
    options.interval = 7200;
    options.overlapped = true;
    options.ranks = 64;
    options.zero = 1;
    options.staging = 10e9;
    const Answer answer = checkpoint(options);
    EXPECT_NEAR(answer.at("write_bytes_per_second").value, 2450e9 / 7200, 1);
    EXPECT_NEAR(answer.at("stall_seconds").value, answer.at("rank_bytes").value / 10e9, 1e-9);
    EXPECT_NEAR(answer.at("stall_share").value, answer.at("stall_seconds").value / 7200, 1e-12);
}

TEST(PlanCheckpoint, RefusesByName) {
    EXPECT_THAT(message_of(checkpoint, CheckpointOptions{}), HasSubstr("expected a config.json"));
    CheckpointOptions options = of_model("7b");
    options.optimizer = "adm";
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("did you mean 'adam'?"));
    options = of_model("7b");
    options.share = 0.5;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("share"));
    options.interval = 10;
    options.seconds = 5;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("share"));
    options.share.reset();
    options.seconds = 20;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("seconds"));
    options = of_model("7b");
    options.config = "{}";
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("expected one of them"));
    options = of_model("7b");
    options.keep = 0;
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("keep"));
    options = of_model("7b");
    options.interval = std::nan("");
    EXPECT_THAT(message_of(checkpoint, options), HasSubstr("interval"));
}

TEST(PlanRestore, GivesBothReadingsOfTheTalk) {
    RestoreOptions options;
    options.model = "175b";
    EXPECT_NEAR(restore(options).at("read_bytes_per_second").value, 8.167e9, 0.001e9);
    options.copies = 16;
    const Answer each = restore(options);
    EXPECT_NEAR(each.at("read_bytes_per_second").value, 130.67e9, 0.01e9);
    EXPECT_TRUE(std::any_of(each.notes.begin(), each.notes.end(), [](const std::string& note) {
        return note.find("2.18 GB/s is 16 copies in five hours") != std::string::npos;
    }));
    options.broadcast = true;
    const Answer broadcast = restore(options);
    EXPECT_NEAR(broadcast.at("read_bytes_per_second").value, 8.167e9, 0.001e9);
    EXPECT_NEAR(broadcast.at("fabric_bytes_per_second").value, 15 * 8.167e9, 0.01e9);
    options.broadcast = false;
    options.seconds = 5 * 3600;
    EXPECT_NEAR(restore(options).at("read_bytes_per_second").value, 2.178e9, 0.001e9);
}

TEST(PlanRestore, ListsTheTable) {
    RestoreOptions options;
    options.list = true;
    options.copies = 16;
    const Answer answer = restore(options);
    ASSERT_EQ(answer.tables.size(), 1U);
    ASSERT_EQ(answer.tables[0].rows.size(), 10U);
    EXPECT_NEAR(std::get<double>(answer.tables[0].rows[6][4]), 2.178e9, 0.001e9);
}

}  // namespace
}  // namespace penstock::plan
