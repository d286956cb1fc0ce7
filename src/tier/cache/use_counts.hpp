// SPDX-License-Identifier: Apache-2.0
// How often keys were used of late, also those that are not in memory: counts of four bits that
// keys share, halved from time to time. A key has two of them, of which the smaller is its count
// (Cormode and Muthukrishnan's count-min sketch, 2005, raised conservatively as Estan and Varghese
// do, 2002); a cache that admits by it is that of Einziger, Friedman and Manes, "TinyLFU" (2017).
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::tier {

class UseCounts {
public:
    static constexpr std::uint8_t kMax = 15;

    UseCounts() = default;
    /// Eight bytes a slot. Throws std::bad_alloc.
    explicit UseCounts(std::uint32_t slots);

    /// Asks for the memory of a key's counts.
    void prefetch(std::uint64_t hash) const {
        if (!counts_.empty()) {
            const auto [first, second] = places(hash);
            __builtin_prefetch(counts_.data() + first / 2, 1);
            __builtin_prefetch(counts_.data() + second / 2, 1);
        }
    }
    /// Whether the counts are to be halved now.
    bool add(std::uint64_t hash);
    [[nodiscard]] std::uint8_t count(std::uint64_t hash) const;
    void halve();
    [[nodiscard]] std::uint64_t bytes() const { return counts_.size(); }

private:
    struct Two {
        std::size_t first = 0;  // of counts of four bits
        std::size_t second = 0;
    };
    [[nodiscard]] Two places(std::uint64_t hash) const;
    [[nodiscard]] std::uint8_t at(std::size_t place) const;
    void raise(std::size_t place);

    std::vector<std::uint8_t> counts_;
    std::uint64_t added_ = 0;
    std::uint64_t added_max_ = 0;
};

}  // namespace penstock::tier
