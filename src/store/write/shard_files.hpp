// SPDX-License-Identifier: Apache-2.0
// The shards of one checkpoint, opened for reading: early, so that they stay readable when the
// checkpoint is removed meanwhile. Shards beyond a limit are opened when they are needed, and
// report an error when they are gone.
#pragma once

#include "store/manifest/manifest.hpp"

#include <penstock/file.hpp>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace penstock::store {

class ShardFiles {
public:
    /// Opens the first shards, as many as exist. The manifest outlives it.
    ShardFiles(FileSystem files, const Manifest& manifest, std::string folder);

    /// One of those did not exist, or could not be opened.
    [[nodiscard]] bool lacks_some() const { return lacks_some_; }
    [[nodiscard]] const Manifest& manifest() const { return manifest_; }
    /// The path where a shard is looked for: in the checkpoint's folder, as a file or a link.
    [[nodiscard]] std::string path(std::uint32_t shard) const;
    /// Any thread. Throws Error; kDamaged where it is missing or has another size.
    [[nodiscard]] File open(std::uint32_t shard);
    /// Throws kClosed after close().
    void check_open();
    /// Closes all of them. open() throws kClosed from now on.
    void close() noexcept;

private:
    [[nodiscard]] File open_now(std::uint32_t shard) const;

    FileSystem files_;
    const Manifest& manifest_;
    std::string folder_;
    std::mutex mutex_;
    std::vector<File> opened_;
    bool lacks_some_ = false;
    bool closed_ = false;
};

}  // namespace penstock::store
