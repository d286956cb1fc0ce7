// SPDX-License-Identifier: Apache-2.0
// Chooses the checkpoints of a store that may be removed: the rules, which are pure, and what they
// need to know of the disk, looked at as late and as little as they allow.
#pragma once

#include "store/background/read_back.hpp"
#include "store/identity/ownership.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/manifest.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::store {

/// Indices of the checkpoints that have a number under the metric's name, the best first; of equal
/// ones the newest first. `checkpoints` rise by generation.
[[nodiscard]] std::vector<std::size_t> ranked(std::span<const CheckpointInfo> checkpoints,
                                              const Metric& metric);

/// At most `count` of those, in that order.
[[nodiscard]] std::vector<CheckpointInfo> best_of(std::span<const CheckpointInfo> checkpoints,
                                                  const Metric& metric, std::size_t count);

/// How many of the newest whole checkpoints are kept; 0: all.
[[nodiscard]] std::uint32_t newest_kept(const StoreOptions& options);

/// Indices of the checkpoints to remove, by rising generation: all that are older than the `keep`
/// newest whole ones (0: none is removed), not among the `keep_best` best whole ones, not the
/// newest whole one of a step that `keep_every_steps` divides, and neither pinned nor of a
/// generation that `keep_every` divides (0: none). A checkpoint with a problem does not count as
/// kept, and is not removed early: a folder that is missing today may be there tomorrow. Two of one
/// generation (a folder was copied by hand) count once: neither goes because of the other.
[[nodiscard]] std::vector<std::size_t> outdated(std::span<const CheckpointInfo> checkpoints,
                                                const StoreOptions& options);

struct Outdated {
    std::vector<std::string> names;          ///< of checkpoints to remove
    std::vector<std::string> left;           ///< why others are not counted, or not removed
    std::vector<DamagedCheckpoint> damaged;  ///< found now, the newest first
};

/// Saves from one that reads a checkpoint back to the next one that does.
inline constexpr std::uint32_t kSavesPerReadBack = 10;

/// Keeps what one store knows of its checkpoints. All arguments outlive it. Not thread-safe.
///
/// The newest checkpoint whose data was read back is never outdated (StoreOptions::read_back). If
/// no such checkpoint is known, or for kSavesPerReadBack saves nothing was read, the newest one is
/// read; if that is damaged and no older one is known to be good, older ones are, until one is
/// good.
class Retention {
public:
    /// Reads all of a checkpoint; gives what it finds.
    using Read = std::function<std::vector<CheckpointProblem>(const std::string& path)>;

    Retention(Engine& engine, const FileSystem& files, const std::vector<std::string>& folders,
              const StoreOptions& options, const Ownership& owner, ReadBack& read_back)
        : engine_(engine),
          files_(files),
          folders_(folders),
          options_(options),
          owner_(owner),
          read_back_(read_back) {}

    /// A new checkpoint. `hash`: stream::content_hash() of the manifest's text.
    void saved(const std::string& name, const Manifest& manifest, std::uint64_t hash);
    void forget(const std::string& name) {
        known_.erase(name);
        read_back_.forget(name);
    }
    /// The store's folder is another one now: what was read of the one before says nothing of it.
    void forget_all() {
        known_.clear();
        read_back_.forget_all();
    }
    /// Throws Error.
    [[nodiscard]] Outdated outdated(const Read& read);

private:
    // A manifest that was parsed; valid as long as its text has the hash.
    struct Known {
        std::uint64_t hash = 0;
        Manifest manifest;  // only its shards, metadata and store
    };
    [[nodiscard]] std::vector<CheckpointInfo> own(std::span<const CheckpointEntry> checkpoints,
                                                  std::vector<std::string>& left) const;
    void check_first(std::size_t count, std::span<const std::size_t> indices,
                     std::span<const CheckpointEntry> checkpoints,
                     std::vector<CheckpointInfo>& infos);
    [[nodiscard]] bool is_whole(const CheckpointEntry& entry);
    void add_metadata(std::span<const CheckpointEntry> checkpoints,
                      std::vector<CheckpointInfo>& infos);
    void remember(const std::string& name, const Manifest& manifest, std::uint64_t hash);
    [[nodiscard]] std::vector<std::size_t> choose(std::span<const CheckpointEntry> checkpoints,
                                                  std::vector<CheckpointInfo>& infos);
    [[nodiscard]] std::optional<std::size_t> known_good(
        std::span<const CheckpointEntry> checkpoints, std::span<const CheckpointInfo> infos);
    [[nodiscard]] std::optional<std::size_t> find_good(std::span<const CheckpointEntry> checkpoints,
                                                       std::vector<CheckpointInfo>& infos,
                                                       const Read& read, Outdated& out);
    [[nodiscard]] const std::string& folder() const { return folders_.front(); }

    Engine& engine_;
    const FileSystem& files_;
    const std::vector<std::string>& folders_;
    const StoreOptions& options_;
    const Ownership& owner_;
    ReadBack& read_back_;
    std::uint32_t saves_since_ = 0;       // a checkpoint was read back
    std::map<std::string, Known> known_;  // by name
};

/// Whether the text of a checkpoint's manifest has this hash. Never throws Error: inspect() finds
/// the reason.
[[nodiscard]] bool has_hash(Engine& engine, const FileSystem& files, const std::string& checkpoint,
                            std::uint64_t hash);

}  // namespace penstock::store
