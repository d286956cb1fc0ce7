// SPDX-License-Identifier: Apache-2.0
// A State as the file that it becomes.
#pragma once

#include "state/index/index_writer.hpp"
#include "state/structure/structure.hpp"
#include "state/writing/file_image.hpp"
#include "tensor/element_type.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/state_file.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::state {

/// The format of a save to this path. Throws Error kInvalidArgument.
[[nodiscard]] StateFormat format_of(const std::string& path, StateFormat given);

/// That it has a type (one of torch's for a `.pt`, else one of safetensors), and memory of the host
/// that goes with its shape. Throws Error with `operation`.
tensor::ElementType check_tensor(const StateTensor& tensor, const char* operation,
                                 bool for_torch = false);
/// Throws Error kInvalidArgument.
[[noreturn]] void refuse_tensor(const StateTensor& tensor, const char* operation,
                                std::string_view why);

/// That these tensors can be read with the state's structure; one that was read again when it was
/// made is taken as it is (State::structure_sum). Throws Error kInvalidArgument.
void check_structure(const State& state, std::span<const StoredTensor> tensors,
                     const char* operation);

/// That the file can hold the state: values without a place in it would be lost silently. Gives the
/// format of the save. Throws Error kInvalidArgument.
StateFormat check_state(const State& state, const std::string& path, StateFormat given);

/// A `.pt`; the archive in it has the stem of the path. The tensors are whole and checked.
struct TorchImage {
    FileImage image;
    std::vector<std::size_t> tensors;  ///< of the state, one per payload
};
[[nodiscard]] TorchImage torch_image(const State& state, const std::string& path);
/// The tensors of a `.safetensors`, or of several. They are whole and checked.
[[nodiscard]] NamedTensors named_tensors(const State& state);

/// Blocks until what the streams hold is done, if tensors are memory of GPUs; see
/// SaveOptions::streams.
void wait_for_streams(std::span<const StateTensor> tensors, std::span<const StreamHandle> streams);

}  // namespace penstock::state
