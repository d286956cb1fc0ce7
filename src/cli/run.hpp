// SPDX-License-Identifier: Apache-2.0
// The `penstock` program, as a function: main.cpp calls it, and so does the console script of the
// Python package.
#pragma once

#include <span>
#include <string>

namespace penstock::cli {

/// Runs the command line (without the program's name). Prints to stdout and stderr and returns the
/// exit code: 0 done, 1 something failed (doctor: something is broken), 2 wrong usage, 128 + n
/// ended by signal n.
[[nodiscard]] int run(std::span<const std::string> args);

/// The machine of a measurement: kernel, processor, memory and the time, as JSON. The commands that
/// are Python put it into what they write, so that there is one list of keys.
[[nodiscard]] std::string environment_json();

}  // namespace penstock::cli
