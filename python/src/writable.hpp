// SPDX-License-Identifier: Apache-2.0
// Whether memory can be written, asked before it is: torch makes tensors of files that are mapped
// to be read, and does not say so.
#pragma once

#include <string>

namespace penstock::python {

/// Why the page of an address cannot be written; empty when it can, or nobody knows. One system
/// call of about a microsecond. Memory that can be written and should not be, such as that of a
/// bytes object, looks like any other.
[[nodiscard]] std::string why_not_writable(const void* address);

}  // namespace penstock::python
