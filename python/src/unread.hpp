// SPDX-License-Identifier: Apache-2.0
// penstock.Unread: what stands in a state for an object of a .pt that is not read.
#pragma once

#include "format/value.hpp"
#include "nanobind.hpp"

#include <string>

namespace penstock::python {

/// `rows`: a list of (name, place, tensor) of each tensor in it; name and place from it on.
[[nodiscard]] nb::object unread_object(const format::Value& value, const std::string& place,
                                       const nb::list& rows);

[[nodiscard]] bool is_unread(nb::handle object);

/// Whether objects that are not read stay in a state: the argument unread=, "raise" or "keep".
[[nodiscard]] bool keeps_unread(nb::handle unread);

/// Raises Unsupported for a state that is to be had whole, and has objects that are not read.
void refuse_unread(const format::ValueTree& tree, nb::handle path);

/// The object's place, its type and why it is not read: what an error says of its use.
[[nodiscard]] std::string use_of_unread(nb::handle object);

}  // namespace penstock::python
