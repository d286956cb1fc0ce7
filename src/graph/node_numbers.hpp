// SPDX-License-Identifier: Apache-2.0
// The nodes of a sample by their number in the graph: an open hash table that only grows.
#pragma once

#include "graph/random_stream.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace penstock::graph {

/// From (node, tree) to a place below kPlacesMax. May throw std::bad_alloc and is then unchanged.
class NodeNumbers {
public:
    static constexpr std::uint64_t kPlacesMax = UINT32_MAX;

    explicit NodeNumbers(std::uint64_t expected) { grow(expected); }

    /// The place that (node, tree) has; if it had none, `place`.
    std::uint64_t place_of(std::uint64_t node, std::uint32_t tree, std::uint64_t place) {
        if ((used_ + 1) * 2 > slots_.size()) {
            grow(used_ * 2);
        }
        Entry& slot = slot_of(slots_, node, tree);
        if (slot.place == 0) {
            slot = {node, tree, static_cast<std::uint32_t>(place + 1)};
            ++used_;
        }
        return slot.place - 1;
    }

private:
    struct Entry {
        std::uint64_t node = 0;
        std::uint32_t tree = 0;
        std::uint32_t place = 0;  ///< less 1; 0: the slot is free
    };

    static Entry& slot_of(std::vector<Entry>& slots, std::uint64_t node, std::uint32_t tree) {
        const std::size_t mask = slots.size() - 1;
        for (std::size_t i = mixed(node + kGolden * tree) & mask;; i = (i + 1) & mask) {
            Entry& slot = slots[i];
            if (slot.place == 0 || (slot.node == node && slot.tree == tree)) {
                return slot;
            }
        }
    }

    void grow(std::uint64_t expected) {
        std::size_t size = 64;
        while (size < expected * 2) {
            size *= 2;
        }
        std::vector<Entry> larger(size);
        for (const Entry& slot : slots_) {
            if (slot.place != 0) {
                slot_of(larger, slot.node, slot.tree) = slot;
            }
        }
        slots_ = std::move(larger);
    }

    std::vector<Entry> slots_;
    std::uint64_t used_ = 0;
};

}  // namespace penstock::graph
