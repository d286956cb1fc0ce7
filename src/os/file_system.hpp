// SPDX-License-Identifier: Apache-2.0
// Operations on storage other than transfers: names, folders, room, locks. The local one is in
// local_file_system.hpp, the simulated one in simulation/; a remote one would fit here too.
#pragma once

#include "base/result.hpp"
#include "os/file.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock::os {

/// An advisory lock on a file, held until destroyed.
class FileLock {
public:
    virtual ~FileLock() = default;
    /// Whether the path that was locked still names the locked file.
    [[nodiscard]] virtual bool is_named() const noexcept = 0;
};

/// An open folder: all operations happen in this folder, whatever its path names by now. A name is
/// one component of a path, and no symbolic link is ever followed. Blocking; any thread.
class Folder {
public:
    explicit Folder(std::string path) : path_(std::move(path)) {}
    virtual ~Folder() = default;
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    /// The path that was opened; for people.
    [[nodiscard]] const std::string& path() const { return path_; }
    /// Sorted, without "." and "..".
    [[nodiscard]] virtual base::Result<std::vector<std::string>> list() = 0;
    [[nodiscard]] virtual base::Result<FileStatus> status(const std::string& name) = 0;
    /// ENOTDIR or ELOOP if it is not a folder, also for a link to one; EXDEV if another file
    /// system, or another part of this one, is mounted there.
    [[nodiscard]] virtual base::Result<std::shared_ptr<Folder>> open_folder(
        const std::string& name) = 0;
    /// A file or a symbolic link; EISDIR for a folder.
    [[nodiscard]] virtual base::Result<void> remove(const std::string& name) = 0;
    /// An empty one; ENOTDIR for anything else, also for a link to a folder.
    [[nodiscard]] virtual base::Result<void> remove_folder(const std::string& name) = 0;
    /// Within this folder; replaces `to` atomically when it is there.
    [[nodiscard]] virtual base::Result<void> rename(const std::string& from,
                                                    const std::string& to) = 0;
    /// Gives this folder the permissions of another, and the rest as FileSystem::take_attributes().
    [[nodiscard]] virtual base::Result<void> take_attributes(const std::string& from);
    /// Makes its names survive a power cut.
    [[nodiscard]] virtual base::Result<void> sync() = 0;
    /// An exclusive lock of the folder itself; EWOULDBLOCK when another process holds it.
    [[nodiscard]] virtual base::Result<std::unique_ptr<FileLock>> lock();

private:
    std::string path_;
};

/// kInvalidArgument for anything but a single name in a folder.
[[nodiscard]] base::Result<void> check_name(const char* operation, const std::string& folder,
                                            const std::string& name);
[[nodiscard]] std::string path_in(const std::string& folder, const std::string& name);

/// Blocking; any thread; each error names its operation and path. Functions that are not pure
/// return kUnsupported if a file system lacks them.
class FileSystem {
public:
    virtual ~FileSystem() = default;

    [[nodiscard]] virtual base::Result<std::shared_ptr<File>> open(const std::string& path,
                                                                   const FileOptions& options) = 0;
    /// For who opens a file for one transfer and closes it. One that is read by kAuto, and has at
    /// most `small_bytes` or some MiB that are all in the page cache, may come as FileInfo::small:
    /// its way to direct I/O would cost more than its bytes. One that is written by kCached may
    /// come without what a device says of direct I/O.
    [[nodiscard]] virtual base::Result<std::shared_ptr<File>> open_once(
        const std::string& path, const FileOptions& options, std::uint64_t /*small_bytes*/) {
        return open(path, options);
    }
    /// Replaces `to` atomically when it is there.
    [[nodiscard]] virtual base::Result<void> rename(const std::string& from,
                                                    const std::string& to) = 0;
    /// Exchanges two names atomically; ENOENT unless both are there, EINVAL or ENOSYS where the
    /// file system cannot.
    [[nodiscard]] virtual base::Result<void> exchange(const std::string& one,
                                                      const std::string& other);
    /// A second name for the same file; EEXIST when `to` is there.
    [[nodiscard]] virtual base::Result<void> link(const std::string& from,
                                                  const std::string& to) = 0;
    /// Makes a name that leads to `target`, which may be missing; EEXIST when `path` exists.
    [[nodiscard]] virtual base::Result<void> symbolic_link(const std::string& target,
                                                           const std::string& path);
    /// A file, a symbolic link or an empty folder.
    [[nodiscard]] virtual base::Result<void> remove(const std::string& path) = 0;
    /// One level; EEXIST when it is there.
    [[nodiscard]] virtual base::Result<void> make_folder(const std::string& path) = 0;
    /// Names in a folder, sorted, without "." and "..".
    [[nodiscard]] virtual base::Result<std::vector<std::string>> list(const std::string& path) = 0;
    [[nodiscard]] virtual base::Result<Space> space(const std::string& path) = 0;
    [[nodiscard]] virtual base::Result<FileStatus> status(const std::string& path);
    /// An absolute path without symbolic links; a part at the end that does not exist yet is kept
    /// as written.
    [[nodiscard]] virtual base::Result<std::string> resolve(const std::string& path);
    /// Copies the mode and, if permitted, owner and group, POSIX ACL and "user." extended
    /// attributes.
    [[nodiscard]] virtual base::Result<void> take_attributes(const std::string& from, File& to);
    /// Sets FileStatus::modified_ns, as exactly as the file system keeps it; no symbolic link is
    /// followed.
    [[nodiscard]] virtual base::Result<void> set_modified(const std::string& path,
                                                          std::int64_t since_1970_ns);
    /// A path that may lead through symbolic links.
    [[nodiscard]] virtual base::Result<std::shared_ptr<Folder>> open_folder(
        const std::string& path);
    /// An exclusive lock of a regular file; `make`: which is made when it does not exist. ELOOP for
    /// a symbolic link. EWOULDBLOCK when another process holds it.
    [[nodiscard]] virtual base::Result<std::unique_ptr<FileLock>> lock(const std::string& path,
                                                                       bool make) = 0;
    /// Makes the names in a folder survive a power cut.
    [[nodiscard]] virtual base::Result<void> sync_folder(const std::string& path) = 0;
};

}  // namespace penstock::os
