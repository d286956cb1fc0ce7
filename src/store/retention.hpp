// SPDX-License-Identifier: Apache-2.0
// Chooses the checkpoints of a store that may be removed: the rules, which are pure, and what they
// need to know of the disk, looked at as late and as little as they allow.
#pragma once

#include "store/manifest.hpp"
#include "store/store_folder.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace penstock::store {

/// Indices of the checkpoints that have a number under the metric's name, the best first; of equal
/// ones the newest first. `checkpoints` rise by generation.
[[nodiscard]] std::vector<std::size_t> ranked(std::span<const CheckpointInfo> checkpoints,
                                              const Metric& metric);

/// How many of the newest whole checkpoints are kept; 0: all.
[[nodiscard]] std::uint32_t newest_kept(const StoreOptions& options);

/// Indices of the checkpoints to remove, by rising generation: all that are older than the `keep`
/// newest whole ones (0: none is removed), not among the `keep_best` best whole ones, and neither
/// pinned nor of a generation that `keep_every` divides (0: none). A checkpoint with a problem does
/// not count as kept, and is not removed early: a folder that is missing today may be there
/// tomorrow.
[[nodiscard]] std::vector<std::size_t> outdated(std::span<const CheckpointInfo> checkpoints,
                                                const StoreOptions& options);

struct Outdated {
    std::vector<std::string> names;  ///< of checkpoints to remove
    std::vector<std::string> left;   ///< why others are neither counted nor removed
};

/// Keeps what one store knows of its checkpoints. All arguments outlive it. Not thread-safe.
class Retention {
public:
    Retention(Engine& engine, const FileSystem& files, const std::vector<std::string>& folders,
              const StoreOptions& options)
        : engine_(engine), files_(files), folders_(folders), options_(options) {}

    /// `hash`: stream::content_hash() of the manifest's text.
    void remember(const std::string& name, const Manifest& manifest, std::uint64_t hash);
    void forget(const std::string& name) { known_.erase(name); }
    /// Throws Error.
    [[nodiscard]] Outdated outdated();

private:
    // A manifest that was parsed; valid as long as its text has the hash.
    struct Known {
        std::uint64_t hash = 0;
        Manifest manifest;  // only its shards and metadata
    };
    [[nodiscard]] std::vector<CheckpointInfo> own(std::span<const CheckpointEntry> checkpoints,
                                                  std::vector<std::string>& left) const;
    void check_first(std::size_t count, std::span<const std::size_t> indices,
                     std::span<const CheckpointEntry> checkpoints,
                     std::vector<CheckpointInfo>& infos);
    [[nodiscard]] bool is_whole(const CheckpointEntry& entry);
    void add_metadata(std::span<const CheckpointEntry> checkpoints,
                      std::vector<CheckpointInfo>& infos);
    [[nodiscard]] const std::string& folder() const { return folders_.front(); }

    Engine& engine_;
    const FileSystem& files_;
    const std::vector<std::string>& folders_;
    const StoreOptions& options_;
    std::map<std::string, Known> known_;  // by name
};

/// Whether the text of a checkpoint's manifest has this hash. Never throws Error: inspect() finds
/// the reason.
[[nodiscard]] bool has_hash(Engine& engine, const FileSystem& files, const std::string& checkpoint,
                            std::uint64_t hash);

}  // namespace penstock::store
