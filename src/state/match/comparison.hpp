// SPDX-License-Identifier: Apache-2.0
// Compares the tensors of a file with those of a model, before any is read.
#pragma once

#include "state/match/scale_owners.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::state {

/// A tensor of a model. memory: equal for tensors that are one in memory.
struct ModelTensor {
    DescribedTensor tensor;
    std::string memory;
};

struct Comparison {
    std::vector<std::string> missing;     ///< names that only the model has
    std::vector<std::string> unexpected;  ///< names that only the file has
    /// Differences that cannot be read over, in the words of torch's load_state_dict().
    std::vector<std::string> problems;
    std::string hint;  ///< prefix_hint()
};

/// `under`: what all names of the file begin with, and a dot; or nothing. The names of the result
/// are without it. `strict`: missing and unexpected names are problems.
[[nodiscard]] Comparison compare_states(std::span<const DescribedTensor> file,
                                        std::span<const ModelTensor> model, std::string_view under,
                                        bool strict);

/// Each tensor of the file that is not taken and is a scale, zero point or table of a taken one,
/// and that one.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> lost_scales(
    std::span<const DescribedTensor> file, std::span<const std::string> taken);

}  // namespace penstock::state
