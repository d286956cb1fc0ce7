// SPDX-License-Identifier: Apache-2.0
#include "store/write/shard_files.hpp"

#include "base/raise.hpp"
#include "store/keep/store_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace penstock::store {

namespace {

// A process may often have no more than 1024 open files.
constexpr std::size_t kOpenedEarlyMax = 256;

[[noreturn]] void damaged(const std::string& path, std::string_view why) {
    base::raise(base::error(ErrorCode::kDamaged, "open shard", why, path));
}

[[noreturn]] void raise_closed(const std::string& folder) {
    base::raise(base::error(ErrorCode::kClosed, "read checkpoint",
                            "this checkpoint is closed; open it again", folder));
}

}  // namespace

ShardFiles::ShardFiles(FileSystem files, const Manifest& manifest, std::string folder)
    : files_(std::move(files)),
      manifest_(manifest),
      folder_(std::move(folder)),
      opened_(manifest.shards.size()) {
    for (std::size_t i = 0; i < std::min(opened_.size(), kOpenedEarlyMax); ++i) {
        try {
            opened_[i] = open_now(static_cast<std::uint32_t>(i));
        } catch (const Error&) {  // reported to the caller that reads from it
            lacks_some_ = true;
        }
    }
}

std::string ShardFiles::path(std::uint32_t shard) const {
    return folder_ + "/" + manifest_.shards[shard].file;
}

File ShardFiles::open(std::uint32_t shard) {
    const std::lock_guard lock(mutex_);
    if (closed_) {
        raise_closed(folder_);
    }
    if (!opened_[shard].is_open()) {
        File file = open_now(shard);
        if (shard >= kOpenedEarlyMax) {
            return file;  // kept open by its readers, and no longer
        }
        opened_[shard] = std::move(file);
    }
    return opened_[shard];
}

void ShardFiles::check_open() {
    const std::lock_guard lock(mutex_);
    if (closed_) {
        raise_closed(folder_);
    }
}

void ShardFiles::close() noexcept {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    opened_.clear();
}

File ShardFiles::open_now(std::uint32_t shard) const {
    const std::string name = path(shard);
    File file;
    try {
        file = open_part(files_, name);
    } catch (const Error& error) {
        if (error.system_errno() != ENOENT) {
            throw;
        }
        damaged(name,
                "it is missing: deleted, or the checkpoint was removed by the store that keeps "
                "only the newest, or the folder that it links to is not mounted; take another "
                "checkpoint");
    }
    const std::uint64_t bytes = file.size();
    if (bytes != manifest_.shards[shard].bytes) {
        damaged(name, fmt::format("it has {} bytes and was saved with {}: cut short or replaced; "
                                  "take another checkpoint",
                                  bytes, manifest_.shards[shard].bytes));
    }
    return file;
}

}  // namespace penstock::store
