// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace penstock::support {

/// Whether both hold the same bytes. std::equal() and operator== of vectors of std::byte go byte by
/// byte, which under the sanitizers takes 30 to 100 times as long.
[[nodiscard]] inline bool same_bytes(std::span<const std::byte> one,
                                     std::span<const std::byte> other) {
    return one.size() == other.size() &&
           (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
}

[[nodiscard]] inline bool all_are(std::span<const std::byte> bytes, std::byte value) {
    return bytes.empty() ||
           (bytes.front() == value && same_bytes(bytes.first(bytes.size() - 1), bytes.subspan(1)));
}

}  // namespace penstock::support
