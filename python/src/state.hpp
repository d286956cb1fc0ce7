// SPDX-License-Identifier: Apache-2.0
// Between the objects of a training state and format::ValueTree. An object that a .pt cannot hold
// raises TypeError with its path in the state.
#pragma once

#include "format/value.hpp"
#include "nanobind.hpp"
#include "slices.hpp"
#include "storage_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock::python {

struct State {
    format::ValueTree tree;
    std::vector<StorageMemory> storages;
    std::vector<SlicedTensor> sliced;
};

struct SavingRank {
    std::uint32_t number = 0;
    std::uint32_t count = 1;
};

/// Tensors stay where they are, those of CUDA too; storages of other devices are copied to the
/// host, one after another, or (`together`) all at once into memory that the device writes itself.
/// `other`: a function, which gives what is saved for an object that a state cannot hold; or None.
/// `rank`: that saves to a store; tensors of which it has a part, and what it has for itself, are
/// taken, and not refused.
[[nodiscard]] State state_of(nb::handle object, nb::handle other, bool together = false,
                             std::optional<SavingRank> rank = std::nullopt);

/// `storages`: a torch.UntypedStorage for each of the tree's. `pickle`: unpickles the
/// pickles that the tree holds, which can run any code. `path`: of the file, for errors.
/// `data`: false where the storages have no data; an empty tensor of the meta device stands for
/// what cannot be made without (kRebuilt). Unsupported if torch refuses to make an object.
[[nodiscard]] nb::object objects_of(const format::ValueTree& tree, nb::handle storages, bool pickle,
                                    nb::handle path, bool data);

}  // namespace penstock::python
