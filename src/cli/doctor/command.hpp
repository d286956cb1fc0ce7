// SPDX-License-Identifier: Apache-2.0
// `penstock doctor`: what slows storage down on this machine.
#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
}

namespace penstock::cli {

struct DoctorOptions {
    std::string path = ".";
    bool all = false;
    std::string options;  ///< an options file, whose paths to GPUs are reported
    std::string json;
};

void add_doctor_options(CLI::App& app, DoctorOptions& options);

/// The exit code: 1 when something is a problem.
[[nodiscard]] int doctor(const DoctorOptions& options, std::span<const std::string> command);

}  // namespace penstock::cli
