// SPDX-License-Identifier: Apache-2.0
// Which part a channel draws from next. Three classes, in each of which flows take turns
// (flows.hpp). The highest class that has work goes first, but for each 15 bytes that it takes,
// each lower class with work earns one, and goes first itself when it has earned what it wants: so
// none falls below 1/16 of the bytes.
#pragma once

#include "base/assert.hpp"
#include "base/intrusive.hpp"
#include "engine/flows.hpp"
#include "engine/transfer.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock::engine {

class Classes {
public:
    /// Limits per request; `background_block_bytes`: for the background class.
    Classes(std::uint64_t block_bytes, std::uint64_t background_block_bytes)
        : block_bytes_(block_bytes),
          queues_{Flows(block_bytes, block_bytes), Flows(block_bytes, block_bytes),
                  Flows(block_bytes, background_block_bytes)} {
        PENSTOCK_ASSERT(block_bytes != 0 && background_block_bytes != 0);  // else no turn ends
    }

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

    /// The part to draw from, or nullptr; background only when `background_too`.
    [[nodiscard]] Part* pick(bool background_too) {
        if (queues_[0].empty() && (queues_[2].empty() || !background_too)) {
            return queues_[1].front();  // as mostly: one class has work
        }
        const std::size_t classes = background_too ? kPriorityCount : kPriorityCount - 1;
        std::size_t highest = classes;
        for (std::size_t c = classes; c-- > 0;) {
            if (queues_[c].empty()) {
                continue;
            }
            highest = c;
            if (earned_[c] >= kShare * block_bytes_) {
                break;
            }
        }
        return highest == classes ? nullptr : queues_[highest].front();
    }

    /// `bytes` of a part that pick() gave are on their way.
    void charge(const Part& part, std::uint64_t bytes) {
        const std::size_t taken = index(part.queue);
        queues_[taken].charge(bytes);
        if (earned_[taken] != 0) {
            earned_[taken] -= kShare * bytes < earned_[taken] ? kShare * bytes : earned_[taken];
        }
        for (std::size_t c = taken + 1; c < kPriorityCount; ++c) {
            earned_[c] = queues_[c].empty() ? 0 : earned_[c] + bytes;
        }
    }

    /// Takes the part that pick() gave out of its queue.
    void remove_front(const Part& part) { queues_[index(part.queue)].pop_front(); }

    /// Takes out the parts that `keep` says no to, in the order of class and turn; the others keep
    /// their places.
    template <typename Keep>
    [[nodiscard]] base::Fifo<Part> take_unless(const Keep& keep) {
        base::Fifo<Part> out;
        for (std::size_t c = 0; c < kPriorityCount; ++c) {
            const auto keep_its = [&](const Part& part) {
                PENSTOCK_ASSERT(index(part.queue) == c);  // charge() and remove_front() go by it
                return keep(part);
            };
            queues_[c].take_unless(keep_its, out);
        }
        return out;
    }

private:
    static constexpr std::uint64_t kShare = 15;

    [[nodiscard]] static std::size_t index(Priority priority) {
        return static_cast<std::size_t>(priority);
    }

    const std::uint64_t block_bytes_;
    std::array<Flows, kPriorityCount> queues_;
    std::array<std::uint64_t, kPriorityCount> earned_{};  ///< in bytes / kShare
};

}  // namespace penstock::engine
