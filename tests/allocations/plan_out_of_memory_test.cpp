// SPDX-License-Identifier: Apache-2.0
// A question of storage is answered, or is an error, at whichever allocation memory runs out.
#include "allocations/failing.hpp"

#include <penstock/plan.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

namespace penstock {
namespace {

// Each seventh allocation: an answer makes some hundreds, one like the other.
constexpr std::uint64_t kStep = 7;
constexpr std::uint64_t kLargeStep = 53;  // of answers with large tables and curves

std::string answered(const std::string& verb, const std::vector<plan::Word>& words,
                     const std::string& figure, std::uint64_t step = kStep) {
    return allocator::each_allocation(
        [&](allocator::Attempt& attempt) -> std::string {
            double value = 0;
            const bool through = attempt([&] {
                const plan::Answer answer = plan::ask(verb, words);
                value = plan::answer_of_json(plan::json_of(answer)).at(figure).value;
                static_cast<void>(plan::text_of(answer));
                static_cast<void>(plan::explain(answer));
                static_cast<void>(plan::markdown_of(answer));
            });
            return through && value <= 0 ? "no figure" : "";
        },
        step, step);
}

TEST(PlanOutOfMemory, QuestionsAreAnswered) {
    EXPECT_EQ(answered("train", {{"model", "resnet50"}}, "read_bytes_per_second"), "");
    EXPECT_EQ(answered("size", {{"model", "unet3d"}, {"memory_bytes", "1GiB"}}, "data_bytes"), "");
    EXPECT_EQ(answered("checkpoint", {{"model", "llama-3-8b"}, {"ranks", "8"}, {"tensors", "true"}},
                       "rank_bytes", kLargeStep),
              "");
    EXPECT_EQ(
        answered("restore", {{"config", R"({"model_type": "gpt2"})"}}, "state_bytes", kLargeStep),
        "");
    EXPECT_EQ(answered("interval", {{"mtbf", "1d"}, {"save", "6min"}, {"simulate", "10"}},
                       "goodput", kLargeStep),
              "");
    EXPECT_EQ(answered("stream", {{"preset", "gen5-8-gds"}}, "tokens_per_second", kLargeStep), "");
    EXPECT_EQ(answered("feeds", {{"files", "1GB/s"}, {"model", "unet3d"}}, "accelerators"), "");
    EXPECT_EQ(
        answered("mix", {{"jobs", R"({"jobs": [{"kind": "restore", "bytes": 1, "within": 1}]})"}},
                 "read_bytes"),
        "");
}

TEST(PlanOutOfMemory, AWrongQuestionIsAnError) {
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      try {
                          return attempt([&] {
                              static_cast<void>(plan::ask("train", {{"model", "resnet5"}}));
                          })
                                     ? "it was answered"
                                     : "";
                      } catch (const Error& error) {
                          return error.reason() == ErrorCode::kInvalidArgument ? "" : error.what();
                      }
                  },
                  1, 1),
              "");
}

TEST(PlanOutOfMemory, VerbsAndPresetsAreListed) {
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      std::size_t count = 0;
                      const bool through = attempt([&] {
                          count = plan::verbs().size() + plan::train_presets().size();
                          count += plan::model_names().size() + plan::model_types().size();
                          count += plan::optimizers().size() + plan::model_named("7b").layers;
                          count += plan::read_model(R"({"model_type": "t5"})").layers;
                          count += plan::reads_files_of_samples("rnnt") ? 1 : 0;
                          count += plan::shown(5e9, "B/s").size();
                      });
                      return through && count < 40 ? "too few" : "";
                  },
                  kStep, kStep),
              "");
}

// Runs on folders are transfers, which the engine's tests starve.
TEST(PlanOutOfMemory, WrongPathsAreErrors) {
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      try {
                          return attempt([&] {
                              plan::MeasureOptions options;
                              options.paths = {"/no/such/folder"};
                              try {
                                  static_cast<void>(plan::measure({}, options));
                              } catch (const Error&) {
                                  static_cast<void>(plan::ask_measured("feeds", {}, options));
                              }
                              static_cast<void>(plan::measure_rates(options));
                          })
                                     ? "they were measured"
                                     : "";
                      } catch (const Error& error) {
                          return error.system_errno() == ENOENT ? "" : error.what();
                      }
                  },
                  kStep, kStep),
              "");
}

TEST(PlanOutOfMemory, MixesAreReadAndJobsSimulated) {
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      double goodput = 0;
                      const bool through = attempt([&] {
                          const plan::FailureModel model{.mtbf = 1000, .stall = 1};
                          static_cast<void>(plan::mix_of_json(
                              R"({"jobs": [{"kind": "restore", "bytes": 1, "within": 1}]})"));
                          goodput =
                              plan::simulate_job(model, plan::best_interval(model), 10, 1).goodput;
                      });
                      return through && goodput <= 0 ? "no figure" : "";
                  },
                  1, 1),
              "");
}

}  // namespace
}  // namespace penstock
