// SPDX-License-Identifier: Apache-2.0
// What a store cannot remove: a checkpoint that the system refuses to rename, a folder in which a
// file stays. It costs only itself: others are removed, saves go on, and it is reported once and
// tried again later: by each of the next saves, then after pauses that grow, so that what can never
// be removed does not make each save slow.
#pragma once

#include <penstock/error.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace penstock::store {

/// So many tries are a save apart, and later ones 2, 4, ... and at most kPauseMaxSaves saves.
inline constexpr std::uint64_t kTriesInARow = 8;
inline constexpr std::uint64_t kPauseMaxSaves = 32;

/// The removals of one store that failed, by path. Not thread-safe.
class StuckRemovals {
public:
    /// A save begins.
    void next_save() { ++saves_; }
    /// Whether a path is to be tried in this save.
    [[nodiscard]] bool is_due(const std::string& path) const;
    /// Returns the report; empty if the same error of this path was reported before. `held_bytes`:
    /// what the path still holds on disk; 0 where that is not known.
    [[nodiscard]] std::string failed(const std::string& path, const Error& error,
                                     std::uint64_t held_bytes);
    void went(const std::string& path) { stuck_.erase(path); }

private:
    struct Stuck {
        std::uint64_t tries = 0;
        std::uint64_t pause = 1;
        std::uint64_t next_try = 0;
        int reported_errno = -1;
    };
    std::uint64_t saves_ = 0;
    std::map<std::string, Stuck> stuck_;
};

/// Reports of a store that are made once, for each save would find the same again.
class ReportedOnce {
public:
    /// Appends those that are new to a note, at most kReportsMax of them; the rest is counted.
    void append(std::string& note, const std::vector<std::string>& reports);

    static constexpr std::size_t kReportsMax = 8;

private:
    std::set<std::string> reported_;
};

}  // namespace penstock::store
