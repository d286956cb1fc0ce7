// SPDX-License-Identifier: Apache-2.0
// The shards of one checkpoint, opened for reading: early, so that they stay readable when the
// checkpoint is removed meanwhile, but for those beyond a limit, which are opened when they are
// needed and say so when they are gone.
#pragma once

#include "store/manifest.hpp"

#include <penstock/file.hpp>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace penstock::store {

class ShardFiles {
public:
    /// Opens the first of them, as far as they are there. The manifest outlives it.
    ShardFiles(FileSystem files, const Manifest& manifest, std::string folder);

    [[nodiscard]] const Manifest& manifest() const { return manifest_; }
    /// Where a shard is looked for: in the checkpoint's folder, whatever it is there.
    [[nodiscard]] std::string path(std::uint32_t shard) const;
    /// Any thread. Throws Error; kDamaged where it is missing or has another size.
    [[nodiscard]] File open(std::uint32_t shard);
    /// Throws kClosed after close().
    void check_open();
    /// Lets go of all of them. open() throws kClosed from now on.
    void close() noexcept;

private:
    [[nodiscard]] File open_now(std::uint32_t shard) const;

    FileSystem files_;
    const Manifest& manifest_;
    std::string folder_;
    std::mutex mutex_;
    std::vector<File> opened_;
    bool closed_ = false;
};

}  // namespace penstock::store
