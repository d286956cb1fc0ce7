// SPDX-License-Identifier: Apache-2.0
// The folders of a checkpoint that is being written, under names that no reader looks for. They are
// removed with the object, until they have their final name.
//
// Shards in another folder of the store have an unfinished name of their own until the manifest
// that names them is durable. So a save that was killed can be told from a checkpoint that was
// committed, and then moved elsewhere: shards with a final name go only with a manifest that names
// them (removal.hpp).
#pragma once

#include "store/identity/ownership.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace penstock::store {

class UnfinishedCheckpoint {
public:
    /// Makes ".unfinished-..." for a checkpoint `name` in the first of the store's folders. All
    /// arguments outlive it. Throws Error.
    UnfinishedCheckpoint(Engine& engine, const FileSystem& files,
                         const std::vector<std::string>& folders, const Ownership& owner,
                         const std::function<std::uint64_t()>& random, std::uint64_t generation,
                         std::string name);
    UnfinishedCheckpoint(const UnfinishedCheckpoint&) = delete;
    UnfinishedCheckpoint& operator=(const UnfinishedCheckpoint&) = delete;
    ~UnfinishedCheckpoint();

    /// The path that it is written to.
    [[nodiscard]] const std::string& path() const { return path_; }
    /// Its path once it has its name.
    [[nodiscard]] const std::string& named_path() const { return named_path_; }
    /// The path that a shard in one of the store's folders is written to. The first call for a
    /// folder makes the shards' folder there.
    [[nodiscard]] std::string shard_path(std::uint32_t folder, const std::string& file);
    /// Makes a link to a shard in any folder but the first, as its path will be.
    void point_to(std::uint32_t folder, const std::string& file);
    /// The final paths of the shards' folders, one per folder of the store; empty: no shards there.
    [[nodiscard]] std::span<const std::string> shard_folders() const { return named_; }
    /// Makes the folders' names durable, then gives it its own name, durably. Throws Error. It
    /// allocates nothing after the rename: lack of memory fails no save that readers can see.
    void give_name();

private:
    void make_shard_folder(std::uint32_t folder);
    void name_shard_folders(const Folder& store);
    void take_away() noexcept;

    Engine& engine_;
    const FileSystem& files_;
    const std::vector<std::string>& folders_;
    const Ownership& owner_;
    const std::function<std::uint64_t()>& random_;
    const std::string name_;
    const std::string named_path_;
    const std::string path_;
    std::vector<std::string> named_;    // one per folder of the store: final paths
    std::vector<std::string> written_;  // the paths that they are written to
    bool has_name_ = false;
    bool is_whole_ = false;
};

}  // namespace penstock::store
