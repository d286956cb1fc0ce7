// SPDX-License-Identifier: Apache-2.0
// The tensors of an iterator, copied as they came (store/background/collected.hpp), as a state that
// is saved later. Private: _state/streamed.py makes one for save_async() and the stores.
#pragma once

#include "nanobind.hpp"
#include "saver.hpp"
#include "state.hpp"

#include <penstock/checkpoint.hpp>

#include <memory>
#include <vector>

namespace penstock::python {

/// For one save. The copies live as long as it, or the memory of its storages.
struct CollectedObject {
    std::unique_ptr<State> state;      ///< a dict of tensors by name; nullptr: it was taken
    std::vector<StateTensor> tensors;  ///< the same, as they came
};

/// `items`, `row`: as of GivenStream; called on this thread, with the GIL. `changing`: as of
/// save().
[[nodiscard]] CollectedObject collect(Saver& saver, nb::handle items, nb::handle row,
                                      nb::handle changing);
[[nodiscard]] bool is_collected(nb::handle object);
/// The state, which the object then has no more.
[[nodiscard]] State take_collected(nb::handle object);
/// For rows_of(): (name, type, shape, address, owner) each.
[[nodiscard]] nb::list rows_of_collected(nb::handle self);

}  // namespace penstock::python
