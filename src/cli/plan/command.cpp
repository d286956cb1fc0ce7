// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/command.hpp"

#include "base/text/units.hpp"
#include "cli/amount_option.hpp"
#include "cli/plan/document.hpp"
#include "report/environment.hpp"
#include "report/flush.hpp"
#include "report/interrupt.hpp"
#include "report/json_output.hpp"
#include "report/progress.hpp"
#include "report/style.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace penstock::cli {

namespace {

constexpr const char* kPlanFooterOfAll = R"(Examples:
  penstock plan train --model resnet50 --accelerators 8 --explain
  penstock plan train --list
  penstock plan measure /data

Units: GB = 1e9 bytes, GiB = 2^30 bytes; both are shown. --explain prints the
formula, the inputs and the source of each constant. measure alone reads a disk.

`penstock plan QUESTION --help` says more. docs/plan.md has all published
figures with the commands that give them.)";

constexpr const char* kMeasure = "measure";
constexpr const char* kMeasureDetails =
    R"(Reads and writes scratch files in these folders for about 20 seconds, all folders
at once, and says how many accelerators of each preset they feed, what binds,
and how sure that is. Reads in sequence (1 MiB, 16 at once) are those of large
files and shards, random reads (128 KiB, 32 at once) those of a file a sample,
writes (1 MiB, 16 at once) end with a sync. Files and block devices are only
read. Direct I/O or nothing: no figure comes from the page cache. Ctrl-C
removes the scratch files.

Examples:
  penstock plan measure /data
  penstock plan measure /mnt/a /mnt/b --model unet3d --preset storage-2.0
  penstock plan measure /data --checkpoint-bytes 2450GB --within 6min
  penstock plan train --model resnet50 --accelerators 8 --measure /data)";

std::string flag_of(std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    return "--" + name;
}

const char* type_of(plan::Amount amount) {
    switch (amount) {
        case plan::Amount::kCount:
            return "N";
        case plan::Amount::kNumber:
            return "NUMBER";
        case plan::Amount::kShare:
            return "SHARE";
        case plan::Amount::kBytes:
            return "SIZE";
        case plan::Amount::kRate:
            return "RATE";
        case plan::Amount::kSeconds:
            return "TIME";
        case plan::Amount::kParameters:
            return "N";
        case plan::Amount::kDocument:
            return "FILE";
        case plan::Amount::kText:
        case plan::Amount::kFlag:
            break;
    }
    return "NAME";
}

// Questions that measured rates answer, and what --measure says of each.
constexpr std::array<std::pair<std::string_view, const char*>, 4> kMeasuringVerbs{
    {{"train", "Measure these folders too, and say whether they read fast enough"},
     {"checkpoint", "Measure these folders too, and say whether they write fast enough"},
     {"restore", "Measure these folders too, and say whether they read fast enough"},
     {"stream", "Measure these folders, in place of --rate"}}};

plan::Answer measured(const std::string& verb, const std::vector<plan::Word>& words,
                      plan::MeasureOptions options, std::optional<std::uint64_t> size) {
    if (size) {
        options.size = static_cast<double>(*size);
    }
    report::Progress progress;
    options.progress = [&](const plan::MeasureStep& step) {
        report::check_interrupt();
        if (progress.due()) {
            progress.step(step.steps == 0 ? std::string()
                                          : fmt::format("[{}/{}] about {:.0f} s left: ", step.step,
                                                        step.steps, step.seconds_left));
            progress.show(
                step.bytes_per_second == 0
                    ? step.doing
                    : fmt::format("{}: {}", step.doing, base::format_rate(step.bytes_per_second)));
        }
        return true;
    };
    plan::Answer answer = plan::ask_measured(verb == kMeasure ? "feeds" : verb, words, options);
    progress.clear();
    return answer;
}

}  // namespace

PlanCommand::PlanCommand(CLI::App& app) {
    app_ = app.add_subcommand("plan", "Say what storage a job needs, with formulas and sources");
    app_->require_subcommand(1);
    app_->footer(kPlanFooterOfAll);
    for (const plan::Verb& verb : plan::verbs()) {
        Question& question = add(verb);
        for (const auto& [name, about] : kMeasuringVerbs) {
            if (name == verb.name) {
                question.app->add_option("--measure", question.measure.paths, about)
                    ->type_name("PATH");
                add_measure_options(question, "--measure-seconds", "--measure-size");
            }
        }
    }
    add_measure();
}

// A question whose rates are measured: its options are those of "feeds" without the rates.
void PlanCommand::add_measure() {
    plan::Verb verb{
        kMeasure, "Measure folders, and say how many accelerators they feed", kMeasureDetails, {}};
    for (const plan::Verb& one : plan::verbs()) {
        for (const plan::OptionInfo& option : one.options) {
            if (one.name == "feeds" && option.amount != plan::Amount::kRate) {
                verb.options.push_back(option);
            }
        }
    }
    Question& question = add(verb);
    question.app->add_option("path", question.measure.paths, "Folders, files or block devices")
        ->required()
        ->type_name("PATH");
    add_measure_options(question, "--seconds", "--size");
}

void PlanCommand::add_measure_options(Question& question, const char* seconds, const char* size) {
    takes_time(question.app->add_option(seconds, question.measure.seconds,
                                        "For all of the measuring (default: 20)"),
               0.1, 3600);
    takes_size(question.app->add_option(
        size, question.measure_size,
        "Of a scratch file (default: 1GiB, or as much as is written in 5 s)"));
}

PlanCommand::Question& PlanCommand::add(const plan::Verb& verb) {
    auto question = std::make_unique<Question>();
    question->verb = verb;
    question->texts.resize(verb.options.size());
    question->app = app_->add_subcommand(verb.name, verb.summary);
    question->app->footer(verb.details);
    for (std::size_t i = 0; i < verb.options.size(); ++i) {
        const plan::OptionInfo& option = verb.options[i];
        const std::string flag = flag_of(option.name);
        if (option.amount == plan::Amount::kFlag) {
            question->options.push_back(question->app->add_flag(flag, option.about));
            continue;
        }
        const bool file = option.amount == plan::Amount::kDocument;
        question->options.push_back(
            question->app
                ->add_option(file ? fmt::format("{},{}", option.name, flag) : flag,
                             question->texts[i], option.about)
                ->type_name(type_of(option.amount)));
    }
    question->app->add_flag("--explain", question->explain,
                            "The formula, inputs and sources of each figure");
    question->app->add_flag("--markdown", question->markdown, "Print Markdown");
    question->app
        ->add_option("--json", question->json,
                     "Write everything to FILE (-: stdout, and the text to stderr)")
        ->type_name("FILE");
    questions_.push_back(std::move(question));
    return *questions_.back();
}

bool PlanCommand::parsed() const {
    return app_->parsed();
}

const PlanCommand::Question* PlanCommand::asked() const {
    for (const auto& question : questions_) {
        if (question->app->parsed()) {
            return question.get();
        }
    }
    return nullptr;
}

std::string PlanCommand::name() const {
    const Question* const question = asked();
    return question == nullptr ? "plan" : "plan " + question->verb.name;
}

std::vector<plan::Word> PlanCommand::Question::words() const {
    std::vector<plan::Word> out;
    for (std::size_t i = 0; i < options.size(); ++i) {
        if (options[i]->count() == 0) {
            continue;
        }
        const plan::OptionInfo& option = verb.options[i];
        if (option.amount == plan::Amount::kFlag) {
            out.push_back({option.name, "true"});
        } else if (option.amount == plan::Amount::kDocument) {
            out.push_back({option.name, document_text(texts[i])});
        } else {
            out.push_back({option.name, texts[i]});
        }
    }
    return out;
}

int PlanCommand::run(std::span<const std::string> command) {
    const Question& question = *asked();
    const std::vector<plan::Word> words = question.words();
    report::JsonOutput json("--json", question.json);
    std::FILE* const out = json.text_stream();
    const std::size_t columns = std::min<std::size_t>(report::columns_of(out), 100);
    const plan::Answer answer =
        question.measure.paths.empty()
            ? plan::ask(question.verb.name, words)
            : measured(question.verb.name, words, question.measure, question.measure_size);
    fmt::print(out, "{}",
               question.markdown  ? plan::markdown_of(answer)
               : question.explain ? plan::explain(answer, columns)
                                  : plan::text_of(answer, columns));
    report::flush(out);
    nlohmann::ordered_json line = nlohmann::ordered_json::array({"penstock"});
    for (const std::string& word : command) {
        line.push_back(word);
    }
    nlohmann::ordered_json all{{"command", line}};
    all.update(nlohmann::ordered_json::parse(plan::json_of(answer)));
    if (!question.measure.paths.empty()) {
        all["environment"] = report::machine_json();
    }
    json.write(all);
    return 0;
}

}  // namespace penstock::cli
