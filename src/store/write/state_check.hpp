// SPDX-License-Identifier: Apache-2.0
// Checks whether a state can be saved, before anything is written.
#pragma once

#include "format/safetensors.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::store {

/// Each tensor as its shard has it: a slice of a larger tensor has that one's name. Throws
/// kInvalidArgument that names the tensor.
[[nodiscard]] std::vector<format::safetensors::Tensor> check_state(const State& state);

/// The shape of the whole tensor that it is a slice of, or its own.
[[nodiscard]] const std::vector<std::uint64_t>& global_shape(const StateTensor& tensor);

/// Whether it is not whole: other processes have the rest.
[[nodiscard]] bool is_slice(const StateTensor& tensor);

/// Throws kChanged, with the tensor, where the look finds one whose memory is not what it was. Does
/// not look at copies: their tensors may be gone. `path`: in the error.
void look_at_all(const State& state, const MemoryLook& look, const std::string& path);

}  // namespace penstock::store
