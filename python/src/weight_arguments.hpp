// SPDX-License-Identifier: Apache-2.0
// Arguments and results that the bindings of streamed weights share.
#pragma once

#include "nanobind.hpp"

#include <penstock/engine.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <memory>
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
/// [(bytes a second, bytes read, those of files without direct I/O, why)]
[[nodiscard]] nb::list folder_stats_of(const std::vector<WeightFolderStats>& folders);

}  // namespace penstock::python
