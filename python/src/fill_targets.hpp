// SPDX-License-Identifier: Apache-2.0
// Tensors that a load fills: whether their memory may be written, asked before a byte is read, and
// how their elements lie.
#pragma once

#include "nanobind.hpp"
#include "source_object.hpp"
#include "state/shared_memory.hpp"

#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

/// The common memory of those that share in the file what they share here; or nothing.
using Kin = std::optional<std::pair<std::uint64_t, std::uint64_t>>;

/// ValueError naming a tensor of the host whose first byte or last cannot be written, one whose
/// elements share memory, or two that do. `tensors`: of torch; `names`: for messages.
void refuse_unfit(const nb::list& names, const nb::list& tensors, const std::vector<Kin>& kin);

/// Refuses a tensor of torch whose elements are not all in its storage, which was resized: its
/// memory is that of others. `what`: the tensor, for the error.
void refuse_past_storage(nb::handle tensor, const std::string& what);

/// The place of its first element.
[[nodiscard]] std::uint64_t address_of(nb::handle tensor);
/// An int of Python.
[[nodiscard]] std::uint64_t number(const nb::object& object);
/// Those with two elements or more, the nearest first.
[[nodiscard]] std::vector<state::ElementLayout::Dimension> dimensions_of(
    nb::handle tensor, std::uint64_t element_bytes);
/// `bytes` of a tensor of torch from `address` on. Throws Error, with the tensor's name, for memory
/// of a GPU that the driver does not know.
[[nodiscard]] Memory memory_of(nb::handle tensor, std::uint64_t address, std::uint64_t bytes,
                               nb::handle name);
/// The numbers of tensors that share memory with others of the list.
[[nodiscard]] nb::list sharing(const nb::list& tensors);
/// Whether it is on the host, or on a GPU that is reached.
[[nodiscard]] bool is_reached(nb::handle tensor);
/// The bytes of its storage that a tensor covers, from its first element to its last: where they
/// begin, and how many they are.
[[nodiscard]] std::pair<std::uint64_t, std::uint64_t> stretch_of(nb::handle view);
/// Whether the source reads boxes of an item, and a view has all that is stored, in that order.
[[nodiscard]] bool has_boxes(const SourceObject& source, std::size_t item, nb::handle view);

}  // namespace penstock::python
