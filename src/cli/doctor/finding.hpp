// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::cli {

/// kProblem: something does not work. kBetter: it works, and could be faster or safer.
enum class Severity : std::uint8_t { kOk, kBetter, kProblem };

/// One result of a check.
struct Finding {
    std::string topic;  ///< "scheduler"
    Severity severity = Severity::kOk;
    std::string what;      ///< the state, and what it means
    std::string evidence;  ///< the file or call, and its value
    std::string cure;      ///< the command that fixes it, or empty
};

using Findings = std::vector<Finding>;

}  // namespace penstock::cli
