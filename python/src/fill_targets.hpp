// SPDX-License-Identifier: Apache-2.0
// Tensors that a load fills: whether their memory may be written, asked before a byte is read, and
// how their elements lie.
#pragma once

#include "nanobind.hpp"
#include "state/shared_memory.hpp"

#include <penstock/types.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace penstock::python {

/// ValueError naming a tensor of the host whose first byte or last cannot be written, one whose
/// elements share memory, or two that do. `tensors`: of torch; `names`: for messages. `kin`: None,
/// or what those have in common that share in the file what they share here, as a tuple of two
/// ints.
void refuse_unfit(const nb::list& names, const nb::list& tensors, const nb::list& kin);

/// Refuses a tensor of torch whose elements are not all in its storage, which was resized: its
/// memory is that of others. `what`: the tensor, for the error.
void refuse_past_storage(nb::handle tensor, const std::string& what);

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
/// A tensor that exists, and the view of an item (a storage, or a tensor of a file) that it is to
/// be filled with, which has its type and shape.
class FillTarget {
public:
    FillTarget(nb::handle view, nb::handle tensor) : view_(view), tensor_(tensor) {}
    [[nodiscard]] std::uint64_t address() const;
    /// Whether its elements stand to each other in memory as those of the view.
    [[nodiscard]] bool lies_as_view() const;
    /// For refuse_unfit().
    [[nodiscard]] nb::object kin(nb::handle item) const;
    /// Whether the `bytes` of the item are its own, as they are, in memory of the host or of a GPU
    /// that is reached.
    [[nodiscard]] bool is_all_of(std::uint64_t bytes) const;
    /// Its memory, where that is so.
    [[nodiscard]] Memory place(std::uint64_t bytes, nb::handle name) const;

private:
    nb::handle view_;
    nb::handle tensor_;
};
/// Reads that fill `targets` with the `views` of a stored tensor without fresh memory: (name,
/// memory, begin, end, strides) each, and the address of memory that has all of it, or None. None:
/// there are no such reads. `stored`: name, bytes, type and shape. `everybody`: nothing else in the
/// state has its memory.
[[nodiscard]] nb::object fill_rows(const nb::list& views, const nb::list& targets,
                                   const nb::tuple& stored, bool everybody);

}  // namespace penstock::python
