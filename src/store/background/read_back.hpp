// SPDX-License-Identifier: Apache-2.0
// What one store knows of the data of its checkpoints: which were read back whole, with their sums,
// by a load of everything, a verify(), or the store itself (retention.hpp). Shared with the
// checkpoints that it opened. Thread-safe. A new process knows nothing, and reads one again.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
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

class ReadBack {
public:
    void found_good(std::uint64_t generation) {
        const std::lock_guard guard(mutex_);
        good_.insert(generation);
        damaged_.erase(generation);
    }
    void found_damaged(std::uint64_t generation) {
        const std::lock_guard guard(mutex_);
        damaged_.insert(generation);
        good_.erase(generation);
    }
    /// A new checkpoint of this number was saved.
    void forget(std::uint64_t generation) {
        const std::lock_guard guard(mutex_);
        good_.erase(generation);
        damaged_.erase(generation);
    }
    /// The store's folder is another one now.
    void forget_all() {
        const std::lock_guard guard(mutex_);
        good_.clear();
        damaged_.clear();
    }
    [[nodiscard]] bool is_good(std::uint64_t generation) const {
        const std::lock_guard guard(mutex_);
        return good_.contains(generation);
    }
    [[nodiscard]] bool is_damaged(std::uint64_t generation) const {
        const std::lock_guard guard(mutex_);
        return damaged_.contains(generation);
    }

private:
    mutable std::mutex mutex_;
    std::set<std::uint64_t> good_;
    std::set<std::uint64_t> damaged_;
};

}  // namespace penstock::store
