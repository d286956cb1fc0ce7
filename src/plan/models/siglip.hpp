// SPDX-License-Identifier: Apache-2.0
// The SigLIP vision tower, and what joins it to a language model as Gemma 3 does.
#pragma once

#include "plan/models/architecture.hpp"

#include <cstdint>
#include <string>

namespace penstock::plan {

/// `hidden`: the width of the language model.
void describe_siglip(ConfigFields& vision, ArchitectureBuilder& out, const std::string& prefix,
                     std::uint64_t hidden);

}  // namespace penstock::plan
