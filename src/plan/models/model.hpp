// SPDX-License-Identifier: Apache-2.0
// The model that the options of checkpoint, restore and stream name.
#pragma once

#include <penstock/plan_model.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

/// The model of a name or of the text of a config.json; exactly one is given. Throws Error
/// (kInvalidArgument, kUnsupported).
[[nodiscard]] ModelParameters model_of(std::string_view verb, const std::string& name,
                                       const std::string& config);

/// The names of the sizes of SNIA's table.
[[nodiscard]] std::vector<std::string> snia_sizes();

}  // namespace penstock::plan
