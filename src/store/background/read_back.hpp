// SPDX-License-Identifier: Apache-2.0
// What one store knows of the data of its checkpoints: which were read back whole, with their sums,
// by a load of everything, a verify(), or the store itself (retention.hpp). Shared with the
// checkpoints that it opened. Thread-safe. A new process knows nothing, and reads one again.
#pragma once

#include <penstock/checkpoint.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {

/// A checkpoint whose data is not what was saved.
struct DamagedCheckpoint {
    std::string path;
    CheckpointProblem problem;  ///< the first
};

/// "checkpoint '...' was read back and is damaged: ..."
[[nodiscard]] std::string text_of(const DamagedCheckpoint& damaged);
/// Throws kDamaged: the save of this checkpoint has failed.
[[noreturn]] void raise_damaged(const DamagedCheckpoint& damaged);

/// Reads all of a checkpoint, behind what else the devices do, and gives what is wrong with it.
/// Throws errors that are not about its files.
[[nodiscard]] std::vector<CheckpointProblem> read_all(const std::shared_ptr<Engine>& engine,
                                                      const FileSystem& files,
                                                      const std::string& path,
                                                      const Progress& progress);

/// Progress of what a save does after its last byte: it may be stopped, and is not counted.
[[nodiscard]] inline Progress still_wanted(const Progress& progress, std::uint64_t bytes) {
    if (!progress) {
        return {};
    }
    return [&progress, bytes](std::uint64_t, std::uint64_t) { return progress(bytes, bytes); };
}

/// By name: two folders may have one generation, where one was copied by hand.
class ReadBack {
public:
    void found_good(std::string_view name) {
        const std::lock_guard guard(mutex_);
        good_.emplace(name);
        erase(damaged_, name);
    }
    void found_damaged(std::string_view name) {
        const std::lock_guard guard(mutex_);
        damaged_.emplace(name);
        erase(good_, name);
    }
    /// A new checkpoint of this name was saved, or the one that had it was removed.
    void forget(std::string_view name) {
        const std::lock_guard guard(mutex_);
        erase(good_, name);
        erase(damaged_, name);
    }
    /// The store's folder is another one now.
    void forget_all() {
        const std::lock_guard guard(mutex_);
        good_.clear();
        damaged_.clear();
    }
    [[nodiscard]] bool is_good(std::string_view name) const {
        const std::lock_guard guard(mutex_);
        return good_.contains(name);
    }
    [[nodiscard]] bool is_damaged(std::string_view name) const {
        const std::lock_guard guard(mutex_);
        return damaged_.contains(name);
    }

private:
    using Names = std::set<std::string, std::less<>>;
    static void erase(Names& names, std::string_view name) {
        if (const auto found = names.find(name); found != names.end()) {
            names.erase(found);
        }
    }
    mutable std::mutex mutex_;
    Names good_;
    Names damaged_;
};

}  // namespace penstock::store
