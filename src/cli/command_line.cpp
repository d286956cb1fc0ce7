// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.hpp"

#include "cli/help.hpp"

#include <penstock/version.hpp>

#include <memory>

namespace penstock::cli {

namespace {

constexpr const char* kFooter = R"(Examples:
  penstock doctor /data                find what slows storage down, and how to fix it
  penstock bench /data                 measure this disk, in half a minute
  penstock bench /data --against fio   the same compared with fio, in turns
  penstock tune /data -o tuned.json    the best settings for this disk, under a minute
  penstock checkpoint ls runs/a        the checkpoints of a store; show, verify, diff, convert
  penstock weights plan model/         a model that is larger than memory, before it is run
  penstock features import f a.npy     rows larger than memory; show, verify
  penstock features simulate ids.npy   what a cache of rows would save
  penstock plan train --list           what storage a job needs, with formulas and sources

With the Python package, which calls this program for all else:
  penstock report bench.json           one HTML page of what --json wrote
  penstock checkpoint bench /data      how fast a model's state is saved and loaded
  penstock weights bench /data         how fast a model runs that is larger than memory
  penstock bench --shapes /data        what programs do with files, compared with the stock ways
  penstock bench gnn /data             the rows of sampled batches, compared with memmap
  penstock ds_io                       DeepSpeed's I/O benchmark, on Penstock
  penstock ds_nvme_tune                DeepSpeed's tuner, on Penstock

In every option SIZE is 4096, 64KiB, 64K (binary too) or 2.5GB (decimal); RATE
is 6.8GB/s, 2GiB/s or 100Gbit/s; TIME is 300, 300s, 20ms, 5min, 2h or 1d.

`penstock COMMAND --help` says more.)";

}  // namespace

CommandLine::CommandLine() {
    app.formatter(std::make_shared<HelpFormatter>());
    app.footer(kFooter);
    app.set_version_flag("--version", "penstock " PENSTOCK_VERSION, "Print the version and exit");
    app.set_help_flag("-h,--help", "Print this help and exit");
    app.require_subcommand(1);
    bench = app.add_subcommand("bench", "Measure what a disk gives through Penstock");
    tune = app.add_subcommand("tune", "Find the settings that suit a disk, in under a minute");
    doctor = app.add_subcommand("doctor", "Find what slows storage down on this machine");
    checkpoint.emplace(app);
    weights.emplace(app);
    features.emplace(app);
    plan.emplace(app);
    add_bench_options(*bench, bench_options);
    add_tune_options(*tune, tune_options);
    add_doctor_options(*doctor, doctor_options);
}

CommandLine::~CommandLine() = default;

}  // namespace penstock::cli
