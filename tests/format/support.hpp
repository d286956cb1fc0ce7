// SPDX-License-Identifier: Apache-2.0
// Bytes of files in memory, and random ones.
#pragma once

#include "base/align.hpp"
#include "format/fault.hpp"
#include "format/file_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::format::test {

using Random = std::mt19937_64;
using Bytes = std::vector<std::byte>;

/// The bits of a byte to flip: each one, and all of them.
inline constexpr int kFlips[] = {1, 2, 4, 8, 16, 32, 64, 128, 255};

inline std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::uint64_t below(Random& random, std::uint64_t limit) {
    return random() % limit;
}

inline Bytes random_bytes(Random& random, std::size_t count) {
    Bytes out(count);
    for (std::size_t at = 0; at < count; at += 8) {
        const std::uint64_t word = random();
        std::memcpy(out.data() + at, &word, std::min<std::size_t>(8, count - at));
    }
    return out;
}

/// The whole file, written range by range as several writers would.
inline Bytes assemble(const FileLayout& file, const std::vector<Bytes>& payloads,
                      std::uint64_t block_bytes = 4096, std::uint64_t target_bytes = 16384) {
    const std::vector<std::span<const std::byte>> spans(payloads.begin(), payloads.end());
    Bytes out(file.total_bytes());
    for (const FileRange r : cut_ranges(file.total_bytes(), block_bytes, target_bytes)) {
        EXPECT_TRUE(base::is_aligned(r.begin, block_bytes));
        file.copy(r, spans, std::span(out).subspan(r.begin, r.end - r.begin));
    }
    return out;
}

template <typename T>
std::string why(const base::Result<T>& result) {
    return result ? std::string("it was accepted") : result.error().describe();
}

}  // namespace penstock::format::test
