// SPDX-License-Identifier: Apache-2.0
// Which part a channel draws from next. Three classes, each first in first out. The highest class
// that has work goes first, but for each 15 bytes that it takes, each lower class with work earns
// one, and goes first itself when it has earned what it wants: so none falls below 1/16 of the
// bytes.
#pragma once

#include "base/intrusive.hpp"
#include "engine/transfer.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock::engine {

class Classes {
public:
    void push_back(Part& part, Priority priority) {
        part.queue = priority;
        queues_[index(priority)].push_back(part);
    }
    void push_front(Part& part, Priority priority) {
        part.queue = priority;
        queues_[index(priority)].push_front(part);
    }
    [[nodiscard]] bool empty() const {
        return queues_[0].empty() && queues_[1].empty() && queues_[2].empty();
    }

    /// The part to draw from, or nullptr; background only when `background_too`. `block_bytes` is
    /// what a lower class has to have earned.
    [[nodiscard]] Part* pick(bool background_too, std::uint64_t block_bytes) const {
        const std::size_t classes = background_too ? kPriorityCount : kPriorityCount - 1;
        std::size_t highest = classes;
        for (std::size_t c = classes; c-- > 0;) {
            if (queues_[c].empty()) {
                continue;
            }
            if (earned_[c] >= block_bytes) {
                return queues_[c].front();
            }
            highest = c;
        }
        return highest == classes ? nullptr : queues_[highest].front();
    }

    /// `bytes` of a part that pick() gave are on their way.
    void charge(const Part& part, std::uint64_t bytes) {
        const std::size_t taken = index(part.queue);
        earned_[taken] -= bytes < earned_[taken] ? bytes : earned_[taken];
        for (std::size_t c = taken + 1; c < kPriorityCount; ++c) {
            if (queues_[c].empty()) {
                earned_[c] = 0;
            } else {
                earned_[c] += bytes / 15;
            }
        }
    }

    /// Takes the part that pick() gave out of its queue.
    void remove_front(const Part& part) { queues_[index(part.queue)].pop_front(); }

    /// Empties all queues, in the order of class and age.
    [[nodiscard]] base::Fifo<Part> take_all() {
        base::Fifo<Part> all;
        for (auto& queue : queues_) {
            all.take(queue);
        }
        return all;
    }

private:
    [[nodiscard]] static std::size_t index(Priority priority) {
        return static_cast<std::size_t>(priority);
    }

    std::array<base::Fifo<Part>, kPriorityCount> queues_;
    std::array<std::uint64_t, kPriorityCount> earned_{};
};

}  // namespace penstock::engine
