// SPDX-License-Identifier: Apache-2.0
#include "weights/experts/expert_forecast.hpp"

#include <algorithm>
#include <utility>

namespace penstock::weights {

namespace {

// A row is halved when its expert was seen this often, so that old habits fade.
constexpr std::uint8_t kHalvedAfter = 64;
// A router that chooses more than this share of a layer gives no hint.
constexpr std::size_t kShareMax = 4;
// Scores in so many steps. A guess moves the share of right ones of its step by a sixteenth.
constexpr std::size_t kSteps = 16;
constexpr float kWeight = 1.0F / 16;
constexpr float kRightLeast = 0.5F;

}  // namespace

ExpertForecast::ExpertForecast(const std::vector<std::size_t>& experts) : layers_(experts.size()) {
    for (std::size_t i = 0; i < experts.size(); ++i) {
        const std::size_t next = experts[(i + 1) % experts.size()];
        layers_[i].pairs.resize(experts[i] * next);
        layers_[i].seen.resize(experts[i]);
        layers_[i].most = std::max<std::size_t>(1, experts[i] / kShareMax);
        layers_[i].right.resize(kSteps);
    }
}

std::size_t ExpertForecast::next_layer() const {
    return (last_ + 1) % layers_.size();
}

void ExpertForecast::learn(std::size_t layer, std::span<const std::size_t> numbers) {
    const bool is_habit = numbers.size() <= layers_[layer].most;
    if (is_habit && !last_numbers_.empty() && layer == next_layer()) {
        judge(layer, numbers);
        count(numbers);
    }
    last_ = layer;
    layers_[layer].chosen = numbers.size();
    last_numbers_.clear();
    guesses_.clear();
    if (is_habit) {
        last_numbers_.assign(numbers.begin(), numbers.end());
    }
}

// Also of guesses that nobody read.
void ExpertForecast::judge(std::size_t layer, std::span<const std::size_t> numbers) {
    for (const auto& [number, step] : guesses_) {
        const bool is_right = std::find(numbers.begin(), numbers.end(), number) != numbers.end();
        float& right = layers_[layer].right[step];
        right += kWeight * ((is_right ? 1.0F : 0.0F) - right);
    }
}

void ExpertForecast::count(std::span<const std::size_t> numbers) {
    Layer& before = layers_[last_];
    const std::size_t width = before.pairs.size() / before.seen.size();
    for (const std::size_t number : last_numbers_) {
        const auto row = before.pairs.begin() + static_cast<std::ptrdiff_t>(number * width);
        if (++before.seen[number] >= kHalvedAfter) {
            before.seen[number] = kHalvedAfter / 2;
            for (std::size_t i = 0; i < width; ++i) {
                std::uint8_t& pair = row[static_cast<std::ptrdiff_t>(i)];
                pair = static_cast<std::uint8_t>(pair / 2);
            }
        }
        for (const std::size_t other : numbers) {
            ++row[static_cast<std::ptrdiff_t>(other)];
        }
    }
}

std::vector<std::size_t> ExpertForecast::likely(const std::vector<bool>& known) {
    guesses_.clear();
    if (last_numbers_.empty() || layers_.size() < 2) {
        return {};
    }
    const Layer& here = layers_[last_];
    const Layer& next = layers_[next_layer()];
    std::vector<std::pair<float, std::size_t>> scores(next.seen.size());
    for (std::size_t i = 0; i < scores.size(); ++i) {
        scores[i].second = i;
    }
    for (const std::size_t number : last_numbers_) {
        const std::uint8_t* const row = here.pairs.data() + number * scores.size();
        const float weight = 1.0F / (1.0F + static_cast<float>(here.seen[number]));
        for (std::size_t i = 0; i < scores.size(); ++i) {
            scores[i].first += weight * static_cast<float>(row[i]);
        }
    }
    std::erase_if(scores, [&](const auto& one) { return one.first <= 0 || known[one.second]; });
    const std::size_t most =
        std::min({scores.size(), next.most, std::max<std::size_t>(1, next.chosen)});
    const auto middle = scores.begin() + static_cast<std::ptrdiff_t>(most);
    std::partial_sort(scores.begin(), middle, scores.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    std::vector<std::size_t> out;
    for (const auto& [score, number] : std::span(scores).first(most)) {
        const float share = score / static_cast<float>(last_numbers_.size());
        const std::size_t step =
            std::min(kSteps - 1, static_cast<std::size_t>(share * static_cast<float>(kSteps)));
        guesses_.emplace_back(number, step);
        if (next.right[step] >= kRightLeast) {
            out.push_back(number);
        }
    }
    return out;
}

}  // namespace penstock::weights
