// SPDX-License-Identifier: Apache-2.0
// Everything that is done with storage and is not a transfer: names, folders, room, locks. The
// local one is in local_file_system.hpp, the simulated one in engine/fake; a remote one would fit
// here too.
#pragma once

#include "base/result.hpp"
#include "os/file.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock::os {

struct OpenOptions {
    Access access = Access::kRead;
    bool create = false;     ///< make the file (0666 less umask) when it is not there
    bool exclusive = false;  ///< with create: an error (EEXIST) when it is there
    bool truncate = false;   ///< cut it to zero bytes
    DirectIo direct = DirectIo::kAuto;
};

struct Space {
    std::uint64_t total_bytes = 0;
    std::uint64_t free_bytes = 0;  ///< what this user may still take
};

/// An advisory lock on a file, held until destroyed.
class FileLock {
public:
    virtual ~FileLock() = default;
};

/// Blocking; any thread; each error names its operation and path.
class FileSystem {
public:
    virtual ~FileSystem() = default;

    [[nodiscard]] virtual base::Result<std::shared_ptr<File>> open(const std::string& path,
                                                                   const OpenOptions& options) = 0;
    /// Replaces `to` atomically when it is there.
    [[nodiscard]] virtual base::Result<void> rename(const std::string& from,
                                                    const std::string& to) = 0;
    /// A second name for the same file; EEXIST when `to` is there.
    [[nodiscard]] virtual base::Result<void> link(const std::string& from,
                                                  const std::string& to) = 0;
    /// A file or an empty folder.
    [[nodiscard]] virtual base::Result<void> remove(const std::string& path) = 0;
    /// One level; EEXIST when it is there.
    [[nodiscard]] virtual base::Result<void> make_folder(const std::string& path) = 0;
    /// Names in a folder, sorted, without "." and "..".
    [[nodiscard]] virtual base::Result<std::vector<std::string>> list(const std::string& path) = 0;
    [[nodiscard]] virtual base::Result<Space> space(const std::string& path) = 0;
    /// Exclusive; made when it is not there. EWOULDBLOCK when somebody else holds it.
    [[nodiscard]] virtual base::Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
    /// Makes the names in a folder survive a power cut.
    [[nodiscard]] virtual base::Result<void> sync_folder(const std::string& path) = 0;
};

}  // namespace penstock::os
