// SPDX-License-Identifier: Apache-2.0
// The folders of a checkpoint that is being written, under names that no reader looks for. They are
// removed with the object, until they have their final name.
#pragma once

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
    UnfinishedCheckpoint(const FileSystem& files, const std::vector<std::string>& folders,
                         const std::function<std::uint64_t()>& random, std::uint64_t generation,
                         std::string name);
    UnfinishedCheckpoint(const UnfinishedCheckpoint&) = delete;
    UnfinishedCheckpoint& operator=(const UnfinishedCheckpoint&) = delete;
    ~UnfinishedCheckpoint();

    /// The path that it is written to.
    [[nodiscard]] const std::string& path() const { return path_; }
    /// Its path once it has its name.
    [[nodiscard]] const std::string& named_path() const { return named_path_; }
    /// The path of its shards in one of the store's folders; made by the first call for it.
    const std::string& shard_folder(std::uint32_t folder);
    /// The path of a shard that is about to be made there. In any folder but the first, a link to
    /// it is made in this one.
    [[nodiscard]] std::string shard_path(std::uint32_t folder, const std::string& file);
    void point_to(std::uint32_t folder, const std::string& file);
    /// One per folder of the store; empty: no shards there.
    [[nodiscard]] std::span<const std::string> shard_folders() const { return shard_folders_; }
    /// Makes the folders' names durable, then gives it its own name, durably. Throws Error. It
    /// allocates nothing after the rename: lack of memory fails no save that readers can see.
    void give_name();

private:
    void take_away() noexcept;

    const FileSystem& files_;
    const std::vector<std::string>& folders_;
    const std::function<std::uint64_t()>& random_;
    const std::string name_;
    const std::string named_path_;
    const std::string path_;
    std::vector<std::string> shard_folders_;
    bool has_name_ = false;
    bool is_whole_ = false;
};

}  // namespace penstock::store
