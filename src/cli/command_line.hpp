// SPDX-License-Identifier: Apache-2.0
// The commands of `penstock` with their options, before a word is read.
#pragma once

#include "cli/bench/options.hpp"
#include "cli/checkpoint/command.hpp"
#include "cli/doctor/command.hpp"
#include "cli/features/command.hpp"
#include "cli/plan/command.hpp"
#include "cli/tune/options.hpp"
#include "cli/weights/command.hpp"

#include <CLI/CLI.hpp>
#include <optional>

namespace penstock::cli {

struct CommandLine {
    CLI::App app{"Penstock moves tensors between storage and memory at the speed of the device.",
                 "penstock"};
    CLI::App* bench = nullptr;
    CLI::App* tune = nullptr;
    CLI::App* doctor = nullptr;
    std::optional<CheckpointCommand> checkpoint;
    std::optional<WeightsCommand> weights;
    std::optional<FeaturesCommand> features;
    std::optional<PlanCommand> plan;
    BenchOptions bench_options;
    TuneOptions tune_options;
    DoctorOptions doctor_options;

    CommandLine();
    ~CommandLine();
    CommandLine(const CommandLine&) = delete;
    CommandLine& operator=(const CommandLine&) = delete;
};

}  // namespace penstock::cli
