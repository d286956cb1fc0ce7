// SPDX-License-Identifier: Apache-2.0
// Between the objects of a training state and format::ValueTree. An object that a .pt cannot hold
// raises TypeError with its path in the state.
#pragma once

#include "format/value.hpp"
#include "nanobind.hpp"
#include "state/subtree.hpp"
#include "storage_memory.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace penstock::python {

struct State {
    format::ValueTree tree;
    std::vector<StorageMemory> storages;
};

/// Tensors stay where they are, those of CUDA too; storages of other devices are copied to the
/// host, one after another, or (`together`) all at once into memory that the device writes itself.
/// `other`: a function, which gives what is saved for an object that a state cannot hold; or None.
[[nodiscard]] State state_of(nb::handle object, nb::handle other, bool together = false);

/// `storages`: a torch.UntypedStorage for each of the tree's. `pickle`: unpickles the
/// pickles that the tree holds, which can run any code. `path`: of the file, for errors.
/// `data`: false where the storages have no data; an empty tensor of the meta device stands for
/// what cannot be made without (kRebuilt). Unsupported if torch refuses to make an object.
[[nodiscard]] nb::object objects_of(const format::ValueTree& tree, nb::handle storages, bool pickle,
                                    nb::handle path, bool data);

/// The part of a tree that a load by names (`one`: a str, not a list) gives, or nothing; see
/// state::named_parts(). KeyError for a name that a list has and the state has not.
[[nodiscard]] std::optional<state::Subtree> part_of(const format::ValueTree& tree,
                                                    const nb::list& wanted, bool one,
                                                    nb::handle path);

/// The type that a load converts to, by its name in torch; ValueError for another.
[[nodiscard]] ElementType float_type_of(nb::handle name);

/// torch's name of each, or None.
[[nodiscard]] nb::list type_names(const std::vector<std::optional<ElementType>>& types);

}  // namespace penstock::python
