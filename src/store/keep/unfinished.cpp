// SPDX-License-Identifier: Apache-2.0
#include "store/keep/unfinished.hpp"

#include "base/path.hpp"
#include "base/text/hex.hpp"
#include "store/identity/parts_name.hpp"
#include "store/keep/removal.hpp"
#include "store/keep/store_folder.hpp"

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

UnfinishedCheckpoint::UnfinishedCheckpoint(Engine& engine, const FileSystem& files,
                                           const std::vector<std::string>& folders,
                                           const Ownership& owner,
                                           const std::function<std::uint64_t()>& random,
                                           std::uint64_t generation, std::string name)
    : engine_(engine),
      files_(files),
      folders_(folders),
      owner_(owner),
      random_(random),
      name_(std::move(name)),
      named_path_(join(folders.front(), name_)),
      path_(join(folders.front(), hidden_name(generation, random()))),
      named_(folders.size()),
      written_(folders.size()) {
    named_.front() = path_;
    written_.front() = path_;
    try {
        files_.make_folder(path_);
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
    if (!written_[folder].empty()) {
        return;
    }
    const std::string name = parts_name(name_, owner_.identity(), random_());
    named_[folder] = join(folders_[folder], name);
    written_[folder] = join(folders_[folder], unfinished_parts_name(name));
    files_.make_folder(written_[folder]);
}

std::string UnfinishedCheckpoint::shard_path(std::uint32_t folder, const std::string& file) {
    make_shard_folder(folder);
    return join(written_[folder], file);
}

void UnfinishedCheckpoint::point_to(std::uint32_t folder, const std::string& file) {
    if (folder != 0) {
        make_shard_folder(folder);
        files_.symbolic_link(join(named_[folder], file), join(path_, file));
    }
}

// A final name is a promise that a manifest here names those shards, at every moment and after a
// power cut: the manifest is durable first.
void UnfinishedCheckpoint::name_shard_folders(const Folder& store) {
    bool is_durable = false;
    for (std::size_t i = 1; i < written_.size(); ++i) {
        if (written_[i].empty()) {
            continue;
        }
        if (!is_durable) {
            store.sync();
            is_durable = true;
        }
        files_.sync_folder(written_[i]);
        files_.rename(written_[i], named_[i]);
        files_.sync_folder(folders_[i]);
    }
}

void UnfinishedCheckpoint::give_name() {
    // Opened before the rename: a folder that cannot be opened (no descriptor is free) must not
    // fail a save whose checkpoint has its name already.
    const Folder store = files_.open_folder(folders_.front());
    files_.sync_folder(path_);
    name_shard_folders(store);
    files_.rename(path_, named_path_);
    has_name_ = true;
    store.sync();
    is_whole_ = true;
}

// Leaves for the next save what cannot be removed now.
void UnfinishedCheckpoint::take_away() noexcept {
    try {
        std::string path = path_;
        if (has_name_) {
            // The rename is done, but may not survive a power cut.
            path = join(folders_.front(), removed_name(name_));
            files_.rename(named_path_, path);
        }
        Remover(engine_, files_, folders_, owner_)
            .take_away(std::string(base::last_name(path)), named_);
    } catch (const std::exception&) {
        return;
    }
}

}  // namespace penstock::store
