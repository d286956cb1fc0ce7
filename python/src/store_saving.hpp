// SPDX-License-Identifier: Apache-2.0
// Saves of a state of Python to a store: its tensors are written from where they lie.
#pragma once

#include "nanobind.hpp"
#include "store_object.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>

namespace penstock::python {

/// Whether the last call of this thread got as far as the store's own, which then tells the other
/// ranks what it fails for. False, until the next one, after forget_call().
[[nodiscard]] bool has_called_store();
void note_call();
void forget_call();

/// `other`, `changing`, `progress`: as `default`, `changing` and `progress` of the method.
/// `replicas`: "equal" or "first".
CheckpointInfo save_to_store(StoreObject& self, nb::handle object, std::uint64_t step, bool pinned,
                             nb::handle metadata, nb::handle other, nb::handle progress,
                             nb::handle changing, nb::handle replicas);
/// `copy`: True, False, or memory that does not change: (address, bytes) each.
nb::object save_to_store_async(StoreObject& self, nb::handle object, std::uint64_t step,
                               bool pinned, nb::handle metadata, nb::handle other, nb::handle copy,
                               nb::object progress, nb::handle changing, nb::handle replicas);

}  // namespace penstock::python
