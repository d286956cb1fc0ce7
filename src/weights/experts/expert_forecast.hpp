// SPDX-License-Identifier: Apache-2.0
// Which experts the next layer will likely need. Pure: it knows numbers, and reads nothing.
//
// It counts how often an expert of a layer was followed by one of the next layer, in the same pass.
// What the router has just chosen so gives every expert of the next layer a score: how often it
// followed those, on average. A score is worth what guesses with that score were lately: an expert
// is given where at least half of them were right. Where routers choose without such a habit,
// nothing is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace penstock::weights {

class ExpertForecast {
public:
    /// `experts`: of each layer. Takes a byte for each pair of experts of adjoining layers.
    explicit ExpertForecast(const std::vector<std::size_t>& experts);

    /// The router chose these of `layer`. More than a quarter of a layer, as a prompt chooses, says
    /// nothing of the next layer.
    void learn(std::size_t layer, std::span<const std::size_t> numbers);
    /// The layer that comes after the one that was learned last.
    [[nodiscard]] std::size_t next_layer() const;
    /// The experts of next_layer() that are worth reading, likeliest first; of those for which
    /// `known[number]` is false. To be called once after learn().
    [[nodiscard]] std::vector<std::size_t> likely(const std::vector<bool>& known);

private:
    struct Layer {
        std::vector<std::uint8_t> pairs;  ///< of an expert and one of the next layer, row by row
        std::vector<std::uint8_t> seen;   ///< of each expert, with a next layer
        std::vector<float> right;         ///< of guesses for this layer, by score: the right ones
        std::size_t chosen = 0;           ///< by the router of this layer, the last time
        std::size_t most = 0;             ///< more of them say nothing
    };
    void judge(std::size_t layer, std::span<const std::size_t> numbers);
    void count(std::span<const std::size_t> numbers);

    std::vector<Layer> layers_;
    std::size_t last_ = 0;
    std::vector<std::size_t> last_numbers_;  // none: nothing is known of the next layer
    std::vector<std::pair<std::size_t, std::size_t>> guesses_;  // for the next layer; with steps
};

}  // namespace penstock::weights
