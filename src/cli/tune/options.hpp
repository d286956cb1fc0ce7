// SPDX-License-Identifier: Apache-2.0
// The options of `penstock tune`.
#pragma once

#include <penstock/types.hpp>

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace penstock::cli {

/// The command line as it came; `finish()` checks it and fills the parsed fields.
struct TuneOptions {
    std::string path;
    double seconds = 45;  ///< of all of it, the scratch file included
    std::string only;     ///< "read", "write" or empty: both
    std::uint64_t size_bytes = 0;
    std::uint64_t write_limit_bytes = std::uint64_t{64} << 30;
    double gain_percent = 2;
    bool full = false;
    std::string device_word;  ///< "cuda:0"
    std::string output;       ///< the options file
    std::string json;

    // Parsed.
    std::int32_t gpu = -1;  ///< of --device; -1: none
    bool read = true;
    bool write = true;

    /// Throws CLI::ValidationError that names the option, its value and the allowed ones.
    void finish();
};

/// Declares the options and the help of `tune` on its subcommand.
void add_tune_options(CLI::App& app, TuneOptions& options);

}  // namespace penstock::cli
