// SPDX-License-Identifier: Apache-2.0
// Which of a node's edges are sampled.
#pragma once

#include "graph/random_stream.hpp"

#include <cstdint>
#include <vector>

namespace penstock::graph {

/// Edges that a node of `degree` edges has in a sample; `fanout`: -1 is all.
[[nodiscard]] constexpr std::uint64_t pick_count(std::uint64_t degree, std::int64_t fanout,
                                                 bool replace) {
    if (fanout < 0 || degree == 0) {
        return degree;
    }
    const auto wanted = static_cast<std::uint64_t>(fanout);
    return !replace && degree < wanted ? degree : wanted;
}

/// Chooses numbers below `degree`. Keeps its memory from call to call; one thread at a time.
class Picks {
public:
    /// pick_count() of them, by calling `take` with each. Without replacement in ascending order
    /// where all are taken, else in no order.
    template <typename Take>
    void choose(std::uint64_t degree, std::int64_t fanout, bool replace, RandomStream random,
                const Take& take) {
        const std::uint64_t count = pick_count(degree, fanout, replace);
        if (fanout >= 0 && replace) {
            for (std::uint64_t i = 0; i < count; ++i) {
                take(random.below(degree));
            }
        } else if (count == degree) {
            for (std::uint64_t i = 0; i < count; ++i) {
                take(i);
            }
        } else {
            floyd(degree, count, random, take);
        }
    }

private:
    /// Each of the last `count` numbers brings one that is no larger: a random one, or where that
    /// is chosen already, itself.
    template <typename Take>
    void floyd(std::uint64_t degree, std::uint64_t count, RandomStream& random, const Take& take) {
        const bool is_short = count <= kShort;
        chosen_.clear();
        if (!is_short) {
            std::uint64_t size = 64;
            while (size < count * 2) {
                size *= 2;
            }
            slots_.assign(size, 0);
        }
        for (std::uint64_t last = degree - count; last < degree; ++last) {
            const std::uint64_t drawn = random.below(last + 1);
            const std::uint64_t pick = is_new(drawn, is_short) ? drawn : last;
            if (pick != drawn) {
                static_cast<void>(is_new(pick, is_short));
            }
            take(pick);
        }
    }

    /// Notes it.
    bool is_new(std::uint64_t number, bool is_short) {
        if (is_short) {
            for (const std::uint64_t earlier : chosen_) {
                if (earlier == number) {
                    return false;
                }
            }
            chosen_.push_back(number);
            return true;
        }
        const std::uint64_t mask = slots_.size() - 1;
        std::uint64_t i = mixed(number) & mask;
        while (slots_[i] != 0 && slots_[i] != number + 1) {
            i = (i + 1) & mask;
        }
        const bool was_free = slots_[i] == 0;
        slots_[i] = number + 1;
        return was_free;
    }

    static constexpr std::uint64_t kShort = 32;  ///< to so many a search from the start is fastest
    std::vector<std::uint64_t> chosen_;
    std::vector<std::uint64_t> slots_;  ///< a hash table of numbers, each plus 1
};

}  // namespace penstock::graph
