// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/options.hpp"

#include "cli/amount_option.hpp"
#include "cli/gpu_option.hpp"
#include "cli/number_from.hpp"
#include "report/interrupt.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <system_error>

namespace penstock::cli {

namespace {

constexpr std::array<std::string_view, 4> kRwNames{"read", "write", "randread", "randwrite"};
constexpr std::uint64_t kBlockMin = 512;
constexpr std::uint64_t kBlockMax = std::uint64_t{64} << 20;
constexpr std::uint64_t kSequentialBlock = 1 << 20;
constexpr std::uint64_t kRandomBlock = 4096;
constexpr std::uint32_t kSequentialDepth = 16;
constexpr std::uint32_t kRandomDepth = 128;
constexpr std::uint32_t kDepthMax = 4096;

constexpr const char* kFooter =
    R"(Sizes: 4KiB, 1MiB and 1GiB are binary (1 KiB = 1024 bytes), 4kB and 1GB decimal
(1 GB = 10^9 bytes); a bare letter is binary: 64k = 64KiB. The table shows GB/s, as
drives are sold. Colours: on a terminal, unless NO_COLOR is set.

Examples:
  penstock bench /data                  quick set, half a minute
  penstock bench /data --against fio    compared with fio, in turns on the same file
  penstock bench /data --rw randread --block-size 4KiB,64KiB --depth 1,32,128
  penstock bench model.safetensors      only reads: your file is never written
  sudo penstock bench /dev/nvme0n1      only reads: the device is never written
  penstock bench /mnt/a /mnt/b --rw read       each alone, both at once, and how close
                                               that comes to their sum
  penstock bench /data --device cuda:0         to and from the memory of a GPU
  penstock bench /data --json - | jq .jobs     every sample, for machines

What it writes: one file, penstock-bench-<pid>.tmp, in each folder that you name. It is
removed at the end, also after Ctrl-C. Whatever was there before is only read.

Several paths: each run of all of them is a stream of transfers that have the same
bytes on each device, so the slowest sets the pace. --depth is that of each device.

--device cuda:0: reads and writes to the memory of that GPU, next to the same to the
host and to bare copies of pinned memory, whose lesser rate is what can be had; and
next to fio, KvikIO and NVIDIA's gdsio where they are installed. KvikIO is looked for
in python3, or in the interpreter that PENSTOCK_KVIKIO_PYTHON names. --fake-gpu 20GB/s
tries it all without a GPU, on the fake driver of a development build, which copies at
that rate; every output says FAKE. The driver is taken from the folder that
PENSTOCK_FAKE_GPU names, else from next to the program in its build folder.

With the Python package: penstock bench --shapes /data compares what programs do (small
reads, many files, appends, rows, loads) with preadv, readinto, memmap and torch.load.

See also: penstock doctor PATH, for what slows storage down.)";

CLI::ValidationError wrong(const std::string& option, const std::string& message) {
    return CLI::ValidationError(option, message);
}

template <typename T>
T choice(const std::string& option, const std::string& word, const std::map<std::string, T>& all) {
    if (const auto found = all.find(word); found != all.end()) {
        return found->second;
    }
    std::vector<std::string> names;
    for (const auto& [name, value] : all) {
        names.push_back(name);
    }
    throw wrong(option, fmt::format("'{}' is not one of {}", word, fmt::join(names, ", ")));
}

std::string backends() {
    return fmt::format("{}, {}, {} or {}", name_of(BackendKind::kAuto),
                       name_of(BackendKind::kUring), name_of(BackendKind::kAio),
                       name_of(BackendKind::kPosix));
}

}  // namespace

std::string to_string(Rw rw) {
    return std::string(kRwNames[static_cast<std::size_t>(rw)]);
}

void BenchOptions::finish() {
    if (paths.size() > report::RemovedBySignal::kRemovedMax) {
        throw wrong("PATH", fmt::format("got {}; expected at most {}", paths.size(),
                                        report::RemovedBySignal::kRemovedMax));
    }
    for (auto path = paths.begin(); path != paths.end(); ++path) {
        if (std::find(paths.begin(), path, *path) != path) {
            throw wrong("PATH",
                        fmt::format("{} came twice; name each folder once, one a device", *path));
        }
    }
    rws.clear();
    for (const std::string& word : rw_words) {
        const auto* const found = std::find(kRwNames.begin(), kRwNames.end(), word);
        if (found == kRwNames.end()) {
            throw wrong("--rw",
                        fmt::format("'{}' is not one of {}", word, fmt::join(kRwNames, ", ")));
        }
        rws.push_back(static_cast<Rw>(found - kRwNames.begin()));
    }
    for (const std::uint32_t depth : depths) {
        if (depth < 1 || depth > kDepthMax) {
            throw wrong("--depth", fmt::format("got {}; expected 1 to {}", depth, kDepthMax));
        }
    }
    if (!against.empty() && against != "fio") {
        throw wrong("--against", fmt::format("got '{}'; expected fio", against));
    }
    gpu = device_word.empty() ? -1 : gpu_of(device_word);
    if (fake_bytes_per_s > 0 && gpu < 0) {
        throw wrong("--fake-gpu", "expected --device cuda:0 with it");
    }
    if (gpu >= 0 && paths.size() > 1) {
        throw wrong("--device", fmt::format("got {} paths with it; expected one", paths.size()));
    }
    const auto kind = backend_named(backend_word);
    if (!kind) {
        throw wrong("--backend", fmt::format("got '{}'; expected {}", backend_word, backends()));
    }
    backend = *kind;
    cache = choice<CachePolicy>("--cache", cache_word,
                                {{name_of(CachePolicy::kCached), CachePolicy::kCached},
                                 {name_of(CachePolicy::kDirect), CachePolicy::kDirect},
                                 {name_of(CachePolicy::kRequired), CachePolicy::kRequired}});
}

std::string BenchOptions::write_words() const {
    const auto found = std::find_if(rws.begin(), rws.end(), probe::is_write);
    return found == rws.end() ? "" : "--rw " + to_string(*found);
}

std::uint64_t BenchOptions::block_bytes_max() const {
    std::uint64_t largest = kSequentialBlock;
    for (const std::uint64_t bytes : block_bytes) {
        largest = std::max(largest, bytes);
    }
    return largest;
}

std::vector<JobSpec> BenchOptions::jobs(bool readable_only) const {
    std::vector<Rw> kinds = rws;
    if (kinds.empty()) {
        kinds = {Rw::kRead, Rw::kWrite};
        if (gpu < 0) {
            kinds.insert(kinds.end(), {Rw::kRandRead, Rw::kRandWrite});
        }
    }
    std::vector<JobSpec> all;
    for (const Rw rw : kinds) {
        if (readable_only && is_write(rw)) {
            continue;
        }
        auto sizes = block_bytes;
        if (sizes.empty()) {
            sizes = {is_random(rw) ? kRandomBlock : kSequentialBlock};
        }
        auto depths_here = depths;
        if (depths_here.empty()) {
            depths_here = {is_random(rw) ? kRandomDepth : kSequentialDepth};
            if (rws.empty() && rw == Rw::kRandRead) {
                depths_here.push_back(1);  // the latency of one read
            }
        }
        for (const std::uint64_t bytes : sizes) {
            for (const std::uint32_t depth : depths_here) {
                all.push_back({rw, bytes, depth});
            }
        }
    }
    return all;
}

void add_bench_options(CLI::App& app, BenchOptions& options) {
    app.footer(kFooter);
    app.add_option("path", options.paths,
                   "A folder: a scratch file is made in it and removed\n"
                   "A file or block device: it is only read\n"
                   "Several devices: each alone, then all in one transfer")
        ->required()
        ->type_name("PATH");
    app.add_option("--rw", options.rw_words,
                   "read,write,randread,randwrite (default: all; on a file the reads)")
        ->delimiter(',')
        ->type_name("KIND");
    takes_size(app.add_option("--block-size", options.block_bytes,
                              "Bytes of one block (default: 1MiB sequential, 4KiB random)")
                   ->delimiter(','),
               kBlockMin, kBlockMax);
    app.add_option("--depth", options.depths,
                   "Blocks at the device at once (default: 16 sequential, "
                   "128 and 1 random); 1: blocking, one after another")
        ->delimiter(',')
        ->type_name("N");
    takes_size(app.add_option("--size", options.size_bytes,
                              "Bytes of the scratch file, or of PATH that are read "
                              "(default: 1GiB, less where writing that takes over 5 s)"),
               1 << 20);
    takes_time(app.add_option("--seconds", options.seconds, "Seconds of each run"), 0.1, 3600)
        ->capture_default_str();
    app.add_option("--repeats", options.repeats, "Runs of each row; the table shows their median")
        ->check(whole_from(1, 1000))
        ->capture_default_str()
        ->type_name("N");
    app.add_option("--channels", options.channels, "Engine threads for the device")
        ->check(whole_from(1, 64))
        ->capture_default_str()
        ->type_name("N");
    app.add_option("--backend", options.backend_word, backends())
        ->capture_default_str()
        ->type_name("NAME");
    app.add_option("--cache", options.cache_word,
                   "direct: bypass the page cache if possible; "
                   "required: an error if it cannot be bypassed; cached: through it")
        ->capture_default_str()
        ->type_name("HOW");
    app.add_option("--against", options.against,
                   "fio: run it in turns with Penstock on the same file, with the "
                   "same block size and depth, and print the ratio")
        ->type_name("PEER");
    app.add_option("--device", options.device_word, "cuda:0: to and from the memory of that GPU")
        ->type_name("GPU");
    takes_rate(app.add_option("--fake-gpu", options.fake_bytes_per_s,
                              "With --device: on the fake driver of a development build, "
                              "which copies at this rate (20GB/s)"));
    app.add_option("--json", options.json,
                   "Write every sample, environment and command line to FILE "
                   "(-: stdout, and the table to stderr)")
        ->type_name("FILE");
}

}  // namespace penstock::cli
