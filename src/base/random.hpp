// SPDX-License-Identifier: Apache-2.0
// Numbers that nobody else draws: for names and ids. Not std::random_device, which, linked
// statically, asks for a glibc of 2.36.
#pragma once

#include <cstdint>

namespace penstock::base {

/// 64 bits of the kernel's. Any thread.
[[nodiscard]] std::uint64_t random_bits();

}  // namespace penstock::base
