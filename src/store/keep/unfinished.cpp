// SPDX-License-Identifier: Apache-2.0
#include "store/keep/unfinished.hpp"

#include "base/assert.hpp"
#include "base/path.hpp"
#include "base/text/hex.hpp"
#include "store/identity/parts_name.hpp"
#include "store/keep/removal.hpp"
#include "store/keep/store_folder.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <exception>
#include <utility>

namespace penstock::store {

namespace {

std::string hidden_name(std::uint64_t generation, std::uint64_t random) {
    std::string digits;
    base::append_hex(digits, random);
    return unfinished_name(generation, digits);
}

}  // namespace

void UnfinishedFolder::make_shard_folder(std::uint32_t folder) {
    PENSTOCK_ASSERT(!names_.written[folder].empty());
}

std::string UnfinishedFolder::shard_path(std::uint32_t folder, const std::string& file) {
    make_shard_folder(folder);
    return join(names_.written[folder], file);
}

void UnfinishedFolder::point_to(std::uint32_t folder, const std::string& file) {
    if (folder != 0) {
        make_shard_folder(folder);
        files_.symbolic_link(join(names_.named[folder], file), join(path(), file));
    }
}

UnfinishedCheckpoint::UnfinishedCheckpoint(Engine& engine, const FileSystem& files,
                                           const std::vector<std::string>& folders,
                                           const Ownership& owner,
                                           const std::function<std::uint64_t()>& random,
                                           std::uint64_t generation, std::string name,
                                           CheckpointPlace* place)
    : UnfinishedFolder(files, folders,
                       {.path = join(folders.front(), hidden_name(generation, random())),
                        .written = std::vector<std::string>(folders.size()),
                        .named = std::vector<std::string>(folders.size())}),
      engine_(engine),
      owner_(owner),
      random_(random),
      place_(place),
      name_(std::move(name)),
      named_path_(place != nullptr ? place->path() : join(folders.front(), name_)) {
    names_.named.front() = path();
    names_.written.front() = path();
    try {
        files_.make_folder(path());
        if (place_ != nullptr) {
            place_->permit(path());
        }
    } catch (...) {
        take_away();
        throw;
    }
}

UnfinishedCheckpoint::~UnfinishedCheckpoint() {
    if (!is_whole_) {
        take_away();
    }
}

void UnfinishedCheckpoint::make_shard_folder(std::uint32_t folder) {
    if (!names_.written[folder].empty()) {
        return;
    }
    const std::string name = parts_name(name_, owner_.identity(), random_());
    names_.named[folder] = join(folders_[folder], name);
    names_.written[folder] = join(folders_[folder], unfinished_parts_name(name));
    files_.make_folder(names_.written[folder]);
}

void UnfinishedCheckpoint::make_shard_folders() {
    for (std::uint32_t i = 1; i < folders_.size(); ++i) {
        make_shard_folder(i);
    }
}

void UnfinishedCheckpoint::drop_shard_folders(const std::vector<bool>& used) {
    PENSTOCK_ASSERT(used.size() == folders_.size());
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        if (!used[i] && !names_.written[i].empty()) {
            files_.remove(names_.written[i]);
            names_.written[i].clear();
            names_.named[i].clear();
        }
    }
}

// A final name is a promise that a manifest here names those shards, at every moment and after a
// power cut: the manifest is durable first.
void UnfinishedCheckpoint::name_shard_folders(const Folder& store) {
    bool is_durable = false;
    for (std::size_t i = 1; i < names_.written.size(); ++i) {
        if (names_.written[i].empty()) {
            continue;
        }
        if (!is_durable) {
            store.sync();
            is_durable = true;
        }
        files_.sync_folder(names_.written[i]);
        files_.rename(names_.written[i], names_.named[i]);
        files_.sync_folder(folders_[i]);
    }
}

void UnfinishedCheckpoint::give_name(bool shared) {
    // Opened before the rename: a folder that cannot be opened (no descriptor is free) must not
    // fail a save whose checkpoint has its name already.
    const Folder store = files_.open_folder(folders_.front());
    const Folder above = place_ != nullptr ? files_.open_folder(place_->parent()) : store;
    if (place_ != nullptr) {
        place_->carry(path());
    }
    files_.sync_folder(path());
    name_shard_folders(store);
    if (place_ != nullptr) {
        place_->put(path());
    } else {
        files_.rename(path(), named_path_);
    }
    has_name_ = true;
    is_whole_ = shared;
    try {
        above.sync();
        if (place_ != nullptr) {
            store.sync();
        }
    } catch (const Error& error) {
        if (!shared) {
            throw;
        }
        throw Error(error.reason(), error.system_errno(), error.operation(), error.path(),
                    kNoOffset,
                    fmt::format("'{}' is there, but may not survive a power cut: {}", named_path_,
                                error.what()));
    }
    is_whole_ = true;
}

// Leaves for the next save what cannot be removed now.
void UnfinishedCheckpoint::take_away() noexcept {
    try {
        std::string gone = path();
        if (place_ != nullptr) {
            if (has_name_) {
                place_->take_back(gone);
            }
            place_->settle();
            return;
        }
        if (has_name_) {
            // The rename is done, but may not survive a power cut.
            gone = join(folders_.front(), removed_name(name_));
            files_.rename(named_path_, gone);
        }
        Remover(engine_, files_, folders_, owner_)
            .take_away(std::string(base::last_name(gone)), names_.named);
    } catch (const std::exception&) {
        return;
    }
}

void rename_away(const FileSystem& files, const std::string& folder, const std::string& path,
                 std::uint64_t generation, std::uint64_t random) {
    const Folder store = files.open_folder(folder);
    try {
        store.rename(std::string(base::last_name(path)), hidden_name(generation, random));
    } catch (const Error& error) {
        if (error.system_errno() != ENOENT) {
            throw;
        }
    }
    store.sync();
}

}  // namespace penstock::store
