// SPDX-License-Identifier: Apache-2.0
// The metadata of a checkpoint, as Python's plain values.
#pragma once

#include "nanobind.hpp"

#include <penstock/checkpoint.hpp>

namespace penstock::python {

/// `rows`: (name, value) each; a value is None, or a bool, int, float or str. ValueError for an int
/// that does not fit into 64 bits, and for more than a checkpoint keeps.
[[nodiscard]] CheckpointMetadata metadata_of(nb::handle rows);

/// A dict.
[[nodiscard]] nb::dict metadata_object(const CheckpointMetadata& metadata);

}  // namespace penstock::python
