// SPDX-License-Identifier: Apache-2.0
// The part of the experts' stream that reads what the next layer will likely need.
#include "weights/experts/streaming_experts.hpp"

#include <algorithm>
#include <exception>

namespace penstock {

// A later wave of a layer says nothing new.
void weights::StreamingExperts::learn(std::size_t layer, std::span<const std::size_t> experts) {
    if (!forecast || (layer == last_layer && !ahead.empty())) {
        return;
    }
    forecast->learn(layer, experts);
    for (const auto& [slot, expert] : likely) {
        const bool is_chosen = expert.layer == layer && std::find(experts.begin(), experts.end(),
                                                                  expert.number) != experts.end();
        stats.likely_hits += is_chosen ? 1 : 0;
    }
    likely.clear();
}

// A refusal is no error here either.
void weights::StreamingExperts::read_likely() noexcept {
    try {
        if (forecast) {
            read_likely_next();
        }
    } catch (const std::exception&) {
        return;
    }
}

// This layer holds its own, and experts of the next layer that are in memory come last to be
// dropped.
void weights::StreamingExperts::read_likely_next() {
    constexpr std::size_t kShare = 4;
    const std::size_t layer = forecast->next_layer();
    std::vector<bool> known(layers[layer].experts.size());
    for (std::size_t number = 0; number < known.size(); ++number) {
        known[number] = cache.find({layer, number}).has_value();
    }
    std::vector<std::size_t> numbers = forecast->likely(known);
    numbers.resize(std::min(numbers.size(), cache.slots() / kShare));
    likely.reserve(numbers.size());
    for (const std::size_t number : numbers) {
        const Expert expert{layer, number};
        const std::optional<std::size_t> slot = cache.take(expert, last_layer);
        if (!slot) {
            return;
        }
        bool is_read = false;
        try {
            is_read = read({{*slot, expert}}, Priority::kBackground);
        } catch (...) {
            cache.clear(*slot);
            throw;
        }
        if (!is_read) {
            cache.clear(*slot);
            return;
        }
        likely.emplace_back(*slot, expert);
    }
}

// Likely experts that are needed now come before other reads; the rest is cancelled, and nobody
// waits for that.
void weights::StreamingExperts::drop_unlikely() noexcept {
    for (Reading& reading : readings) {
        if (!reading.is_likely) {
            continue;
        }
        try {
            if (is_wanted(reading)) {
                reading.transfer.set_priority(Priority::kUrgent);
            } else if (!reading.is_dropped) {
                reading.is_dropped = true;
                cache.clear(reading.experts.front().first);
                reading.transfer.cancel();
            }
        } catch (const std::exception&) {
            continue;  // it is over
        }
    }
}

}  // namespace penstock
