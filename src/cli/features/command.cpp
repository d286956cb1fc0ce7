// SPDX-License-Identifier: Apache-2.0
#include "cli/features/command.hpp"

#include "cli/amount_option.hpp"
#include "cli/number_from.hpp"

#include <CLI/CLI.hpp>

namespace penstock::cli {

namespace {

constexpr const char* kFeaturesFooter =
    R"(Examples:
  penstock features import igb.features paper=node_feat.npy
  penstock features show igb.features
  penstock features verify igb.features
  penstock features simulate ids.npy --batch 1024

`penstock features COMMAND --help` says more.)";

constexpr const char* kImportFooter =
    R"(Makes one feature file, with some MiB of memory. Each source becomes a table:
a .npy, a tensor in a .pt or .safetensors, or raw rows. The content of the file
decides which, not its name. Of a file with several tensors the one called NAME
is taken. Raw rows need --dtype and --row, and --offset if a header comes first.

The file is written completely and durably, or not at all. Rows are padded only
if that saves more reads than it adds to the file.

Exit code: 0 done, 1 a file is not readable or the disk is full, 2 wrong usage.

Examples:
  penstock features import igb.features paper=paper.npy author=author.npy
  penstock features import igb.features paper.npy --folder /nvme0 --folder /nvme1
  penstock features import ogb.features x=data.pt
  penstock features import igb.features paper=raw.bin --dtype float32 --row 1024)";

constexpr const char* kShowFooter =
    R"(Reads the header and no row. Of a .npy it says what its header costs: a device
reads whole blocks.

Examples:
  penstock features show igb.features
  penstock features show paper.npy --json -)";

constexpr const char* kVerifyFooter =
    R"(Reads all rows from the device and compares them with their checksums, one for
each MiB.

Exit code: 0 sound, 1 damaged or not readable, 2 wrong usage.

Examples:
  penstock features verify igb.features)";

constexpr const char* kSimulateFooter =
    R"(Runs the cache over the rows that batches asked for, and reads no table. The
trace is a .npy of integers (two dimensions: a batch a row; one: --batch ids
each), or a file of batches: for each its number of ids and the ids, as
little-endian integers of 64 bits.

static, clock, s3fifo and window are the policies of the store, run by its own
code. fifo, lru and s3fifo_whole let any row have any slot, for comparison.
belady knows all batches to come: no policy reads fewer rows.

Exit code: 0 done, 1 the trace is not readable, 2 wrong usage.

Examples:
  penstock features simulate ids.npy --batch 1024             all policies
  penstock features simulate run.trace --cache 5% --window 16
  penstock features simulate run.trace --cache 100000 --policy window belady
  penstock features simulate run.trace --json -               for machines)";

}  // namespace

FeaturesCommand::FeaturesCommand(CLI::App& app) {
    app_ = app.add_subcommand("features", "Tables of rows that are larger than memory");
    app_->require_subcommand(1);
    app_->footer(kFeaturesFooter);
    add_file_commands();
    SimulateOptions& options = simulate_options_;
    simulate_ = app_->add_subcommand("simulate", "Say what a cache of rows would save");
    simulate_->add_option("trace", options.trace, "The rows of a run's batches")
        ->required()
        ->type_name("TRACE");
    simulate_
        ->add_option("--cache", options.caches,
                     "Rows that are kept, or a share of the table's (default: 1% 5% 10% 20%)")
        ->delimiter(',')
        ->type_name("ROWS");
    simulate_->add_option("--policy", options.policies, "Policies to run (default: all)")
        ->delimiter(',')
        ->type_name("NAME");
    simulate_
        ->add_option("--rows", options.rows,
                     "Rows of the table (default: up to the highest in the trace)")
        ->check(whole_from(1))
        ->type_name("N");
    simulate_->add_option("--batch", options.batch, "Ids a batch, for a .npy of one dimension")
        ->check(whole_from(1))
        ->type_name("N");
    simulate_
        ->add_option("--window", options.window,
                     "Batches that are hinted ahead, for window (default: 8)")
        ->check(whole_from(0, 30))
        ->type_name("N");
    simulate_
        ->add_option("--warm-up", options.warm_up,
                     "Batches at the beginning that are not counted (default: 0)")
        ->check(whole_from(0))
        ->type_name("N");
    simulate_
        ->add_option("--json", options.json,
                     "Write everything to FILE (-: stdout, and the text to stderr)")
        ->type_name("FILE");
    simulate_->footer(kSimulateFooter);
}

void FeaturesCommand::add_file_commands() {
    import_ = app_->add_subcommand("import", "Make a feature file of .npy, tensor and raw files");
    import_->add_option("path", options_.path, "The file to be written")
        ->required()
        ->type_name("FEATURES");
    import_->add_option("source", options_.sources, "A table and its file, or a file alone")
        ->required()
        ->type_name("NAME=FILE");
    import_
        ->add_option("--folder", options_.folders,
                     "Stripe the rows over folders on several devices (again for each)")
        ->allow_extra_args(false)
        ->type_name("FOLDER");
    import_->add_option("--dtype", options_.dtype, "Of raw files: float32, int64 ...")
        ->type_name("TYPE");
    import_->add_option("--row", options_.row, "Of raw files: elements of a row, 1024 or 3,224,224")
        ->check(CLI::Validator(
            [](const std::string& word) {
                return row_shape_of(word) ? std::string()
                                          : fmt::format(
                                                "got '{}'; expected elements of a row: "
                                                "1024, or 3,224,224 for several dimensions",
                                                word);
            },
            ""))
        ->type_name("N");
    takes_size(import_->add_option("--offset", options_.offset,
                                   "Of raw files: byte of row 0 (default: 0)"));
    import_->add_option("--rows", options_.rows, "Take so many rows of each file (default: all)")
        ->check(whole_from(1))
        ->type_name("N");
    import_->footer(kImportFooter);
    show_ = app_->add_subcommand("show", "Say what a feature file or .npy has");
    show_->footer(kShowFooter);
    verify_ = app_->add_subcommand("verify", "Compare all rows with their checksums");
    verify_->footer(kVerifyFooter);
    for (CLI::App* const command : {show_, verify_}) {
        command->add_option("path", options_.path, "A feature file")
            ->required()
            ->type_name("FEATURES");
    }
    for (CLI::App* const command : {import_, show_, verify_}) {
        command
            ->add_option("--json", options_.json,
                         "Write everything to FILE (-: stdout, and the text to stderr)")
            ->type_name("FILE");
    }
}

bool FeaturesCommand::parsed() const {
    return app_->parsed();
}

std::string FeaturesCommand::name() const {
    for (const CLI::App* const command : {import_, show_, verify_, simulate_}) {
        if (command->parsed()) {
            return "features " + command->get_name();
        }
    }
    return "features";
}

int FeaturesCommand::run(std::span<const std::string> command) {
    if (import_->parsed()) {
        return import_feature_files(options_, command);
    }
    if (show_->parsed()) {
        return show_features(options_, command);
    }
    return verify_->parsed() ? verify_feature_file(options_, command)
                             : simulate_features(simulate_options_, command);
}

}  // namespace penstock::cli
