// SPDX-License-Identifier: Apache-2.0
#include "store/unfinished.hpp"

#include "base/hex.hpp"
#include "base/path.hpp"
#include "store/removal.hpp"
#include "store/store_folder.hpp"

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

UnfinishedCheckpoint::UnfinishedCheckpoint(const FileSystem& files,
                                           const std::vector<std::string>& folders,
                                           const std::function<std::uint64_t()>& random,
                                           std::uint64_t generation, std::string name)
    : files_(files),
      folders_(folders),
      random_(random),
      name_(std::move(name)),
      named_path_(join(folders.front(), name_)),
      path_(join(folders.front(), hidden_name(generation, random()))),
      shard_folders_(folders.size()) {
    shard_folders_.front() = path_;
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

const std::string& UnfinishedCheckpoint::shard_folder(std::uint32_t folder) {
    std::string& path = shard_folders_[folder];
    if (path.empty()) {
        path = join(folders_[folder], parts_name(name_, folders_.front(), random_()));
        files_.make_folder(path);
    }
    return path;
}

std::string UnfinishedCheckpoint::shard_path(std::uint32_t folder, const std::string& file) {
    return join(shard_folder(folder), file);
}

void UnfinishedCheckpoint::point_to(std::uint32_t folder, const std::string& file) {
    if (folder != 0) {
        files_.symbolic_link(shard_path(folder, file), join(path_, file));
    }
}

void UnfinishedCheckpoint::give_name() {
    // Opened before the rename: a folder that cannot be opened (no descriptor is free) must not
    // fail a save whose checkpoint has its name already.
    const Folder store = files_.open_folder(folders_.front());
    for (std::size_t i = 1; i < shard_folders_.size(); ++i) {
        if (!shard_folders_[i].empty()) {
            files_.sync_folder(shard_folders_[i]);
            files_.sync_folder(folders_[i]);
        }
    }
    files_.sync_folder(path_);
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
        Remover(files_, folders_).take_away(std::string(base::last_name(path)), shard_folders_);
    } catch (const std::exception&) {
        return;
    }
}

}  // namespace penstock::store
