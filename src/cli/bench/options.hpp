// SPDX-License-Identifier: Apache-2.0
// The options of `penstock bench`.
#pragma once

#include "probe/job.hpp"

#include <penstock/types.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace penstock::cli {

using probe::JobSpec;  // a row of the table
using probe::Rw;

[[nodiscard]] std::string to_string(Rw rw);

/// The command line as it came; `finish()` checks it and fills the parsed fields.
struct BenchOptions {
    std::vector<std::string> paths;
    std::vector<std::string> rw_words;
    std::vector<std::uint64_t> block_bytes;
    std::vector<std::uint32_t> depths;
    std::uint64_t size_bytes = 0;  ///< 0: 1 GiB, or as much as is written in five seconds
    double seconds = 1.5;
    std::uint32_t repeats = 3;
    std::uint32_t channels = 1;
    std::string backend_word = "auto";
    std::string cache_word = "direct";
    std::string against;
    std::string json;
    std::string device_word;      ///< "cuda:0"
    double fake_bytes_per_s = 0;  ///< of --fake-gpu; 0: the driver of this machine

    // Parsed.
    std::vector<Rw> rws;  ///< empty: those that suit the path
    BackendKind backend = BackendKind::kAuto;
    CachePolicy cache = CachePolicy::kDirect;
    std::int32_t gpu = -1;  ///< of --device; -1: memory of the host

    /// Throws CLI::ValidationError that names the option, its value and the allowed ones.
    void finish();
    /// All rows: kinds x block sizes x depths. `readable_only` leaves the writes out.
    [[nodiscard]] std::vector<JobSpec> jobs(bool readable_only) const;
    /// "--rw write" when writes were asked for, else empty.
    [[nodiscard]] std::string write_words() const;
    [[nodiscard]] std::uint64_t block_bytes_max() const;
    [[nodiscard]] probe::RunOptions run() const { return {seconds, backend, channels, gpu}; }
};

/// Declares the options and the help of `bench` on its subcommand.
void add_bench_options(CLI::App& app, BenchOptions& options);

}  // namespace penstock::cli
