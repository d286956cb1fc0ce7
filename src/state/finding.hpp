// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <penstock/error.hpp>

namespace penstock::state {

/// Whether an error tells of the file and not of this machine: what could not be opened or read for
/// want of memory, descriptors or rights may be sound.
[[nodiscard]] bool is_finding(const Error& error);

}  // namespace penstock::state
