// SPDX-License-Identifier: Apache-2.0
// The folder of an index of shards, as a save of that index uses it: its lock, free names, the
// records of saves, and the removal of shards.
//
// A record is a locked temporary file of the index (replace.hpp) that holds names of shards in the
// form of an index. Locks of dead processes are released: a save that can lock the record of
// another may remove the shards in it, and then the record.
//
// Only files of this very folder are removed, and nothing that an index in this folder names, or
// may name: one that cannot be understood keeps all. An index may come from another program, or
// name files of one. So an index has a mark (ShardIndex::mark): a hash of its own file name, and of
// the names and sizes of its shards. The shards of an index go only where its mark is that of the
// files that are there; others stay. In a record only names that format::shard_name() makes count.
#pragma once

#include "format/shard_index.hpp"
#include "state/writing/replace.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace penstock::state {

class IndexFolder {
public:
    /// `path`: that of the index, which may be missing; a symbolic link is followed. `sync`:
    /// records and removals are durable.
    IndexFolder(Engine& engine, FileSystem files, const std::string& path, bool sync = true);

    /// The path of the index, without symbolic links.
    [[nodiscard]] const std::string& index() const { return index_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string in(const std::string& name) const;

    /// Waits some seconds until no other process saves an index here. Not held if there are no
    /// locks, or another process holds it for long.
    [[nodiscard]] FileLock lock() const;
    /// Removes the records of dead saves with their shards. Returns the shards of living ones.
    [[nodiscard]] std::set<std::string> collect() const;
    /// Unused names, here and in the folder of a link to the index, and none of `taken`; plain ones
    /// if possible, else with a unique tag.
    [[nodiscard]] std::vector<std::string> free_names(std::size_t count,
                                                      const std::set<std::string>& taken,
                                                      bool plain) const;
    /// Makes a record of these, removed with the object; durable with `sync`. Throws Error.
    [[nodiscard]] std::unique_ptr<Replacement> note(const std::vector<std::string>& shards) const;
    /// The shards of the present index; nothing if it may not be read. Throws Error.
    [[nodiscard]] std::vector<std::string> shards() const;
    /// Those of them that a save of this index wrote, by its mark: all of them, or none.
    [[nodiscard]] std::vector<std::string> own_shards() const;
    /// The mark of an index here with these shards.
    [[nodiscard]] std::string mark_of(std::span<const std::string> shards,
                                      std::span<const std::uint64_t> bytes) const;
    /// Removes shards with the temporary files of each, durably. False if something may be left.
    bool remove(const std::vector<std::string>& shards) const noexcept;
    /// Removes existing shards that this save made and that no index names yet; and `half`, which
    /// may exist. Without `half` it needs no memory. False if something may be left.
    bool remove_made(std::span<const std::string> shards, const std::string* half) const noexcept;

private:
    [[nodiscard]] bool may_be_json(const File& file) const;
    [[nodiscard]] std::optional<format::ShardIndex> index_in(const std::string& path) const;
    [[nodiscard]] std::vector<std::string> named_in(const std::string& path) const;
    [[nodiscard]] std::vector<std::string> own_named_in(const std::string& record) const;
    void remove_unnamed(std::set<std::string> shards) const;
    void remove_abandoned(const std::string& name) const;

    Engine& engine_;
    FileSystem files_;
    const bool sync_;
    std::string beside_;  // the folder of the given path, which may be a link
    std::string index_;
    std::string path_;
    std::string stem_;  // "model"
    Folder folder_;     // not open if it may not be listed
};

}  // namespace penstock::state
