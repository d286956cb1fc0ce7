// SPDX-License-Identifier: Apache-2.0
// Arguments and results that the bindings of streamed weights share.
#pragma once

#include "nanobind.hpp"

#include <penstock/engine.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::python {

/// From [(name, [tensor])].
[[nodiscard]] std::vector<WeightUnit> units_of(nb::handle list);
[[nodiscard]] std::vector<std::string> folders_of(nb::handle paths);
/// From [(tensor, offset, bytes)].
[[nodiscard]] std::vector<TensorPart> tensor_parts_of(nb::handle list);
/// From [(name, shape, [(tensor, offset, bytes)])].
[[nodiscard]] std::vector<JoinedTensor> joined_of(nb::handle list);
/// The copies of the files, and the table with what is joined.
[[nodiscard]] WeightFolders joined_folders(const std::shared_ptr<Engine>& engine,
                                           const std::vector<std::string>& folders,
                                           const std::vector<JoinedTensor>& joined);
/// The number of a GPU; None: the host.
[[nodiscard]] std::optional<std::int32_t> gpu_of(nb::handle number);
/// The budget follows what is left there but for `reserve` bytes; None: it stays.
[[nodiscard]] SpareMemory spare_of(nb::handle reserve, std::optional<std::int32_t> gpu);
/// A tensor in memory of streamed weights. Of the host: a Buffer. Of a GPU: (address, bytes,
/// element type, shape, owner). Throws TypeError for an element type that torch does not have.
[[nodiscard]] nb::object tensor_in(const std::shared_ptr<void>& owner, const ConstMemory& memory,
                                   const TensorEntry& entry, std::span<const std::uint64_t> shape);
void bind_gpu_owner(nb::module_& m);
/// [(bytes a second, bytes read, those of files without direct I/O, why)]
[[nodiscard]] nb::list folder_stats_of(const std::vector<WeightFolderStats>& folders);

}  // namespace penstock::python
