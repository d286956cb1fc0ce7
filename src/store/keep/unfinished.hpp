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
#include "store/keep/place.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::store {

/// The places of the files of an unfinished checkpoint: one entry per folder of the store.
struct UnfinishedNames {
    std::string path;                  ///< of the folder in the first one
    std::vector<std::string> written;  ///< the paths that shards are written to; empty: not made
    std::vector<std::string> named;    ///< their final paths
};

/// The folders of a checkpoint that this process did not make: those of another rank.
class UnfinishedFolder {
public:
    /// All arguments outlive it.
    UnfinishedFolder(const FileSystem& files, const std::vector<std::string>& folders,
                     UnfinishedNames names)
        : files_(files), folders_(folders), names_(std::move(names)) {}
    UnfinishedFolder(const UnfinishedFolder&) = delete;
    UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;
    virtual ~UnfinishedFolder() = default;

    /// The path that it is written to.
    [[nodiscard]] const std::string& path() const { return names_.path; }
    [[nodiscard]] const UnfinishedNames& names() const { return names_; }
    /// The path that a shard in one of the store's folders is written to. The first call for a
    /// folder makes the shards' folder there.
    [[nodiscard]] std::string shard_path(std::uint32_t folder, const std::string& file);
    /// Makes a link to a shard in any folder but the first, as its path will be.
    void point_to(std::uint32_t folder, const std::string& file);
    /// The final paths of the shards' folders, one per folder of the store; empty: no shards there.
    [[nodiscard]] std::span<const std::string> shard_folders() const { return names_.named; }

protected:
    virtual void make_shard_folder(std::uint32_t folder);

    const FileSystem& files_;
    const std::vector<std::string>& folders_;
    UnfinishedNames names_;
};

class UnfinishedCheckpoint final : public UnfinishedFolder {
public:
    /// Makes ".unfinished-..." for a checkpoint `name` in the first of the store's folders, or for
    /// the one at `place`. All arguments outlive it. Throws Error.
    UnfinishedCheckpoint(Engine& engine, const FileSystem& files,
                         const std::vector<std::string>& folders, const Ownership& owner,
                         const std::function<std::uint64_t()>& random, std::uint64_t generation,
                         std::string name, CheckpointPlace* place = nullptr);
    ~UnfinishedCheckpoint() override;

    /// Its path once it has its name.
    [[nodiscard]] const std::string& named_path() const { return named_path_; }
    /// For writers that cannot make them: the shards' folder in each folder of the store.
    void make_shard_folders();
    /// Removes the shards' folders that no manifest will name. `used`: one per folder.
    void drop_shard_folders(const std::vector<bool>& used);
    /// Makes the folders' names durable, then gives it its own name, durably. Throws Error. It
    /// allocates nothing after the rename: lack of memory fails no save that readers can see.
    /// `shared`: others may have found the name since the rename, and called it saved. So a sync
    /// that fails after it takes nothing away.
    void give_name(bool shared = false);

private:
    void make_shard_folder(std::uint32_t folder) override;
    void name_shard_folders(const Folder& store);
    void take_away() noexcept;

    Engine& engine_;
    const Ownership& owner_;
    const std::function<std::uint64_t()>& random_;
    CheckpointPlace* const place_;
    const std::string name_;
    const std::string named_path_;
    bool has_name_ = false;
    bool is_whole_ = false;
};

/// Ends an unfinished checkpoint of another process, whatever that does: after this it cannot get
/// its name, unless it has it already. Durable. Throws Error.
void rename_away(const FileSystem& files, const std::string& folder, const std::string& path,
                 std::uint64_t generation, std::uint64_t random);

}  // namespace penstock::store
