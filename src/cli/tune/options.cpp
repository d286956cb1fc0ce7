// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/options.hpp"

#include "cli/amount_option.hpp"
#include "cli/gpu_option.hpp"
#include "cli/number_from.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace penstock::cli {

namespace {

constexpr const char* kTuneFooter =
    R"(How it decides: settings run in short slices, in turns, and only their ratio to the
defaults in the same turn counts, so that a disk that drifts misleads nobody. Settings
that are surely slower leave early. The best one then meets the defaults on fresh runs; it is
named only when the whole 95 % interval of the ratio lies above the gain that is worth
it (--gain). Otherwise the defaults stay, and tune says which it could not tell apart.

Examples:
  penstock tune /mnt/nvme                        the settings that suit this disk
  penstock tune /mnt/nvme -o tuned.json          and keep it for Engine(options="tuned.json")
  penstock tune /mnt/nvme --only read            nothing is written but the scratch file
  penstock tune model.safetensors                only reads: your file is never written
  penstock tune /mnt/nvme --seconds 300 --full   smaller differences, on a disk that swings
  penstock tune /mnt/nvme --device cuda:0 -o tuned.json    and the faster way to that GPU

--device cuda:0: at the end the two ways between this disk and that GPU run in turns, through
pinned memory of the host and, where it is direct, by cuFile. The file (-o) keeps the faster
one for this pair (tuned_gpu_paths), next to the pairs that it has; gpu_path 'auto' takes it.

What it writes: one file, penstock-tune-<pid>.tmp, in the folder that you name, over and
over, at most --write-limit bytes in all. It is removed at the end, also after Ctrl-C.

See also: penstock bench PATH, to measure the disk; penstock doctor PATH.)";

constexpr std::uint64_t kSizeLeast = std::uint64_t{64} << 20;

}  // namespace

void TuneOptions::finish() {
    if (!only.empty() && only != "read" && only != "write") {
        throw CLI::ValidationError("--only", fmt::format("'{}' is not one of read, write", only));
    }
    read = only != "write";
    write = only != "read";
    gpu = device_word.empty() ? -1 : gpu_of(device_word);
}

void add_tune_options(CLI::App& app, TuneOptions& options) {
    app.footer(kTuneFooter);
    app.add_option("path", options.path,
                   "A folder: a scratch file is made in it and removed\n"
                   "A file or block device: it is only read")
        ->required()
        ->type_name("PATH");
    takes_time(app.add_option("--seconds", options.seconds, "Seconds it may take in all"), 5, 3600)
        ->capture_default_str();
    app.add_option("--only", options.only, "read or write (default: both, and together)")
        ->type_name("KIND");
    app.add_option("--gain", options.gain_percent,
                   "Percent that settings must be faster to be worth it")
        ->check(number_from(0.0, 100.0))
        ->capture_default_str()
        ->type_name("PERCENT");
    app.add_flag("--full", options.full, "Use all of --seconds, also when the answer is known");
    takes_size(app.add_option("--size", options.size_bytes,
                              "Bytes of the scratch file, or of PATH that are read "
                              "(default: 1GiB, less where writing that takes over 5 s)"),
               kSizeLeast);
    takes_size(app.add_option("--write-limit", options.write_limit_bytes,
                              "Bytes written in all, for the sake of the drive"),
               kSizeLeast)
        ->default_str("64GiB");
    app.add_option("--device", options.device_word,
                   "cuda:0: also the faster way between this disk and that GPU")
        ->type_name("GPU");
    app.add_option("-o,--output", options.output,
                   "Write the settings to FILE, for Engine(options=\"FILE\")")
        ->type_name("FILE");
    app.add_option("--json", options.json,
                   "Write every sample, environment and command line to FILE "
                   "(-: stdout, and the table to stderr)")
        ->type_name("FILE");
}

}  // namespace penstock::cli
