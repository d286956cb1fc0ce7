// SPDX-License-Identifier: Apache-2.0
// Memory that gathers under way fill. Two that fill the same bytes at once leave undefined rows
// there, which must not be kept. A gather that was dropped counts until its reads are over.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock::features {

/// Thread-safe.
class FilledMemory {
public:
    struct Range {
        const std::byte* begin = nullptr;
        const std::byte* end = nullptr;
        std::weak_ptr<const void> reading;  ///< expires when its reads are over
        bool overlaps = false;
        bool dropped = false;
    };
    using List = std::list<Range>;
    using Position = List::iterator;

    /// Moves the only element of `one` here: a list is made by who may throw.
    Position add(List& one) noexcept {
        const Position added = one.begin();
        const std::lock_guard lock(mutex_);
        ranges_.remove_if(
            [](const Range& other) { return other.dropped && other.reading.expired(); });
        for (Range& other : ranges_) {
            if (other.begin < added->end && added->begin < other.end) {
                other.overlaps = added->overlaps = true;
            }
        }
        ranges_.splice(ranges_.end(), one);
        return added;
    }
    [[nodiscard]] bool overlaps(Position range) const {
        const std::lock_guard lock(mutex_);
        return range->overlaps;
    }
    /// `finished`: nobody writes there any more.
    void remove(Position range, bool finished) noexcept {
        const std::lock_guard lock(mutex_);
        if (finished || range->reading.expired()) {
            ranges_.erase(range);
        } else {
            range->dropped = true;
        }
    }

private:
    mutable std::mutex mutex_;
    List ranges_;
};

}  // namespace penstock::features
