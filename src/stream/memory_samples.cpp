// SPDX-License-Identifier: Apache-2.0
#include "stream/memory_samples.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::stream {

namespace {

// Words from the first to the last, at equal distances: each costs one miss of the cache.
constexpr std::size_t kWords = 8;
using Words = std::array<std::uint64_t, kWords>;

struct Sampled {
    const std::byte* data;
    std::uint64_t bytes;
    Words words;
};

Words words_of(const std::byte* data, std::uint64_t bytes) {
    Words out{};
    if (bytes <= sizeof(out)) {
        if (bytes != 0) {
            std::memcpy(out.data(), data, bytes);
        }
        return out;
    }
    const std::uint64_t last = bytes - sizeof(std::uint64_t);
    for (std::size_t i = 0; i < kWords; ++i) {
        std::memcpy(&out[i], data + last / (kWords - 1) * i, sizeof(std::uint64_t));
    }
    std::memcpy(&out[kWords - 1], data + last, sizeof(std::uint64_t));
    return out;
}

}  // namespace

MemoryLook with_samples(MemoryLook look, std::span<const ConstMemory> memory) {
    std::vector<Sampled> sampled;
    sampled.reserve(memory.size());
    for (const ConstMemory& one : memory) {
        const std::uint64_t bytes = one.kind == MemoryKind::kHost ? one.bytes : 0;
        sampled.push_back({one.data, bytes, words_of(one.data, bytes)});
    }
    return [look = std::move(look), sampled = std::move(sampled)](
               std::span<const std::size_t> numbers) -> std::optional<std::size_t> {
        if (look) {
            if (const auto gone = look(numbers)) {
                return gone;
            }
        }
        const auto changed = std::find_if(numbers.begin(), numbers.end(), [&](std::size_t i) {
            return words_of(sampled[i].data, sampled[i].bytes) != sampled[i].words;
        });
        return changed == numbers.end() ? std::nullopt : std::optional(*changed);
    };
}

}  // namespace penstock::stream
