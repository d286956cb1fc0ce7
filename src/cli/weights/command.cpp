// SPDX-License-Identifier: Apache-2.0
#include "cli/weights/command.hpp"

#include "cli/amount_option.hpp"
#include "cli/number_from.hpp"

#include <CLI/CLI.hpp>

namespace penstock::cli {

namespace {

constexpr double kComputeMax = 1e6;

constexpr const char* kWeightsFooter =
    R"(Examples:
  penstock weights plan model/ --memory 8GiB --rate measured
  penstock weights bench /data --preset llama3-8b
      (Python package) seconds a token, with those of other ways

`penstock weights COMMAND --help` says more.)";

constexpr const char* kPlanFooter =
    R"(Reads the headers of the .safetensors and no tensor. A unit is a layer (a
numbered group of names) or a module outside of layers. penstock.stream() keeps
a share of each in memory and reads the rest for each token. Embeddings are read
by row, and are not in the budget.

The seconds are those of the device alone, unless --compute says how long a
token takes with all weights in memory. `--compute measured` is the least that
it can take: each weight once from memory, at the speed of all processors but
one. Of a mixture, the experts that a token uses are read, less those that are
in memory as if a router chose each equally often. Several folders are copies of
the model, or its shards, on several devices, which are read at once.

Nothing is downloaded: `hf download NAME` does.

Exit code: 0 it works, 1 the budget is too small or a file is not readable,
2 wrong usage.

Examples:
  penstock weights plan model/ --memory 8GiB                  bytes a token
  penstock weights plan model/ --memory 8GiB --rate 3GB/s     and seconds
  penstock weights plan model/ --memory 8GiB --rate measured  as this disk reads
  penstock weights plan model/ --memory 8GiB --rate measured --compute measured
  penstock weights plan model/ --memory 8GiB --json -         for machines)";

}  // namespace

WeightsCommand::WeightsCommand(CLI::App& app) {
    app_ = app.add_subcommand("weights", "Plan a model that is larger than memory");
    app_->require_subcommand(1);
    app_->footer(kWeightsFooter);
    plan_ = app_->add_subcommand("plan", "Say what a budget of memory keeps and reads");
    plan_
        ->add_option("folder", options_.folders,
                     "A folder with .safetensors, or one such file, or the name of a model in "
                     "the local cache of Hugging Face")
        ->required()
        ->type_name("FOLDER");
    takes_size(
        plan_->add_option("--memory", options_.memory, "The budget of penstock.stream(): 8GiB"))
        ->required();
    takes_rate(plan_->add_option("--rate", options_.rate,
                                 "Bytes a second of the device (3GB/s), or measured: read for a "
                                 "second now"),
               kMeasured);
    takes_time(plan_->add_option("--compute", options_.compute,
                                 "Seconds of a token with all weights in memory, or measured: the "
                                 "weights at the speed of memory (default: 0)"),
               0, kComputeMax, kMeasured);
    plan_
        ->add_option("--experts", options_.experts,
                     "Experts that a token uses in each layer (default: as config.json says)")
        ->check(whole_from(1, 1 << 20))
        ->type_name("N");
    plan_
        ->add_option("--slots", options_.slots,
                     "Slots for units that are read; 2 or more (default: 2)")
        ->check(whole_from(2, 1024))
        ->type_name("N");
    plan_
        ->add_option("--json", options_.json,
                     "Write everything to FILE (-: stdout, and the text to stderr)")
        ->type_name("FILE");
    plan_->footer(kPlanFooter);
}

bool WeightsCommand::parsed() const {
    return app_->parsed();
}

std::string WeightsCommand::name() const {
    return plan_->parsed() ? "weights plan" : "weights";
}

int WeightsCommand::run(std::span<const std::string> command) {
    return weights_plan(options_, command);
}

}  // namespace penstock::cli
