// SPDX-License-Identifier: Apache-2.0
// The folder of an index of shards, as a save of that index works on it: its lock, the names that
// are free, the records that saves leave, and the removal of shards.
//
// A record is a locked temporary file of the index (replace.hpp) that holds names of shards in the
// form of an index. Locks of dead processes are gone: a save that can lock the record of another
// may remove what it names, and then the record.
//
// Removed are files and links of this very folder alone, never what a link leads to, and nothing
// that an index in this folder names. An index and a record are files that others may have written:
// of an index only names that end in ".safetensors" count, of a record only those that
// format::shard_name() gives.
#pragma once

#include "state/replace.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace penstock::state {

class IndexFolder {
public:
    /// `path`: of the index, which need not be there; a symbolic link is followed.
    IndexFolder(Engine& engine, FileSystem files, const std::string& path);

    /// The index, without symbolic links.
    [[nodiscard]] const std::string& index() const { return index_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string in(const std::string& name) const;

    /// Waits some seconds until nobody else saves an index here. Not held: there are no locks, or
    /// somebody has it for long.
    [[nodiscard]] FileLock lock() const;
    /// Takes away the records of dead saves with what they name. The shards of those that live.
    [[nodiscard]] std::set<std::string> collect() const;
    /// Names under which nothing is, neither here nor beside a link to the index, and none of
    /// `taken`; plain ones if that may be, else with a tag that nobody else draws.
    [[nodiscard]] std::vector<std::string> free_names(std::size_t count,
                                                      const std::set<std::string>& taken,
                                                      bool plain) const;
    /// A durable record of these, which goes with the object. Throws Error.
    [[nodiscard]] std::unique_ptr<Replacement> note(const std::vector<std::string>& shards) const;
    /// What the index that is there now names; nothing where it may not be read. Throws Error.
    [[nodiscard]] std::vector<std::string> shards() const;
    /// With the temporary files of each, durably. False where something may be left.
    bool remove(const std::vector<std::string>& shards) const noexcept;
    /// Shards that are there, that this save made and that no index names yet; and `half`, which
    /// may be there. Without `half` it needs no memory. False where something may be left.
    bool remove_made(std::span<const std::string> shards, const std::string* half) const noexcept;

private:
    [[nodiscard]] std::vector<std::string> named_in(const std::string& path) const;
    [[nodiscard]] std::vector<std::string> own_named_in(const std::string& record) const;
    void remove_unnamed(std::set<std::string> shards) const;
    void remove_abandoned(const std::string& name) const;

    Engine& engine_;
    FileSystem files_;
    std::string beside_;  // the folder of what was given, which may be a link
    std::string index_;
    std::string path_;
    std::string stem_;  // "model"
    Folder folder_;     // not open where it may not be listed
};

}  // namespace penstock::state
