// SPDX-License-Identifier: Apache-2.0
// `penstock plan`: what storage a job needs. A subcommand for each question of <penstock/plan.hpp>.
#pragma once

#include <penstock/plan.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace penstock::cli {

class PlanCommand {
public:
    /// Adds `plan` and its subcommands.
    explicit PlanCommand(CLI::App& app);
    [[nodiscard]] bool parsed() const;
    /// "plan train", with as much as was given.
    [[nodiscard]] std::string name() const;
    /// The exit code.
    [[nodiscard]] int run(std::span<const std::string> command);

private:
    struct Question {
        plan::Verb verb;
        CLI::App* app = nullptr;
        std::vector<std::string> texts;  // of each option of the verb
        std::vector<CLI::Option*> options;
        plan::MeasureOptions measure;  // paths, where these are asked for
        std::optional<std::uint64_t> measure_size;
        bool explain = false;
        bool markdown = false;
        std::string json;

        [[nodiscard]] std::vector<plan::Word> words() const;
    };

    Question& add(const plan::Verb& verb);
    void add_measure();
    static void add_measure_options(Question& question, const char* seconds, const char* size);
    [[nodiscard]] const Question* asked() const;

    CLI::App* app_ = nullptr;
    std::vector<std::unique_ptr<Question>> questions_;
};

}  // namespace penstock::cli
