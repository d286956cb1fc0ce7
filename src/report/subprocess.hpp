// SPDX-License-Identifier: Apache-2.0
// Runs another program to its end and captures its output.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace penstock::report {

struct Finished {
    int status = 0;  ///< exit status; 128 + n when signal n ended it; 127 when it was not found
    std::string output;
    std::string errors;
};

/// Looks for argv[0] in PATH. `tick` is called ten times a second; when it throws, the program is
/// ended first. Throws Error when it cannot be started at all.
[[nodiscard]] Finished run_program(const std::vector<std::string>& argv,
                                   const std::function<void()>& tick);

}  // namespace penstock::report
