// SPDX-License-Identifier: Apache-2.0
#include "store/stuck/stuck_removals.hpp"

#include "base/text/units.hpp"
#include "store/write/save.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::store {

bool StuckRemovals::is_due(const std::string& path) const {
    const auto found = stuck_.find(path);
    return found == stuck_.end() || found->second.next_try <= saves_;
}

std::string StuckRemovals::failed(const std::string& path, const Error& error,
                                  std::uint64_t held_bytes) {
    Stuck& stuck = stuck_[path];
    if (++stuck.tries >= kTriesInARow) {
        stuck.pause = std::min(2 * stuck.pause, kPauseMaxSaves);
    }
    stuck.next_try = saves_ + stuck.pause;
    if (stuck.reported_errno == error.system_errno()) {
        return {};
    }
    stuck.reported_errno = error.system_errno();
    return fmt::format(
        "'{}' could not be removed{}, and later saves try again: {}", path,
        held_bytes == 0 ? "" : fmt::format(" and still takes {}", base::format_bytes(held_bytes)),
        error.what());
}

void ReportedOnce::append(std::string& note, const std::vector<std::string>& reports) {
    std::size_t count = 0;
    for (const std::string& report : reports) {
        if (reported_.insert(report).second && ++count <= kReportsMax) {
            append_note(note, report);
        }
    }
    if (count > kReportsMax) {
        append_note(note, fmt::format("and {} more of this kind", count - kReportsMax));
    }
}

}  // namespace penstock::store
