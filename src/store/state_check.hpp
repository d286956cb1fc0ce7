// SPDX-License-Identifier: Apache-2.0
// Whether a state can be saved, asked before anything is written.
#pragma once

#include "format/safetensors.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <vector>

namespace penstock::store {

/// Each tensor as its shard has it: a slice of a larger tensor is named "<name>@<offsets>" there,
/// for a name comes once in a file. Throws kInvalidArgument that names the tensor.
[[nodiscard]] std::vector<format::safetensors::Tensor> check_state(const State& state);

/// Of the tensor that it is a slice of, or its own.
[[nodiscard]] const std::vector<std::uint64_t>& global_shape(const StateTensor& tensor);

/// Not whole: others have the rest.
[[nodiscard]] bool is_slice(const StateTensor& tensor);

}  // namespace penstock::store
