// SPDX-License-Identifier: Apache-2.0
// The experts of a mixture that are in memory. Pure: it knows numbers of slots, layers and experts,
// and reads nothing.
//
// An expert that is chosen often stays: what is dropped is the one that was chosen least, by counts
// that are halved from time to time. Counts within a factor of two are equal; among those it is the
// one whose layer comes last. Layers take turns, so a cache that drops what was used longest ago
// would drop what is needed next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::weights {

class ExpertCache {
public:
    struct Expert {
        std::size_t layer = 0;
        std::size_t number = 0;  ///< in its layer
    };

    /// `experts`: of each layer.
    ExpertCache(std::size_t slots, const std::vector<std::size_t>& experts);

    [[nodiscard]] std::size_t slots() const { return slots_.size(); }
    /// More slots, or fewer, of which none beyond is held: what is in those is forgotten.
    void resize(std::size_t slots);
    /// Returns the slot that has it, or nothing.
    [[nodiscard]] std::optional<std::size_t> find(Expert expert) const;
    /// The router chose it.
    void count(Expert expert);
    /// A slot for an expert that is in none, taken from another if there is no empty one. Nothing,
    /// where all are held. `layer` has its turn now.
    [[nodiscard]] std::optional<std::size_t> take(Expert expert, std::size_t layer);
    [[nodiscard]] std::optional<std::size_t> take(Expert expert) {
        return take(expert, expert.layer);
    }
    /// A slot that is held is not taken. As often as release().
    void hold(std::size_t slot);
    void release(std::size_t slot);
    [[nodiscard]] bool is_held(std::size_t slot) const { return slots_[slot].held != 0; }
    /// The content of the slot is not valid.
    void clear(std::size_t slot);

private:
    struct ExpertSlot {
        std::optional<Expert> expert;
        std::uint32_t held = 0;
    };
    struct Layer {
        std::vector<std::uint32_t> counts;
        std::vector<std::optional<std::size_t>> slots;  ///< of each expert
        std::uint32_t counted = 0;                      ///< since counts were halved
    };
    [[nodiscard]] std::optional<std::size_t> victim(std::size_t layer) const;

    std::vector<ExpertSlot> slots_;
    std::vector<Layer> layers_;
};

}  // namespace penstock::weights
