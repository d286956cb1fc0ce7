// SPDX-License-Identifier: Apache-2.0
// Files, and the file systems they are on.
#pragma once

#include <penstock/error.hpp>
#include <penstock/types.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

namespace os {
class Appender;
class File;
class FileLock;
class FileSystem;
class Folder;
}  // namespace os

/// The description of an open file. Alignments are in bytes; 1: none is required. Penstock handles
/// them itself; callers can use them to choose good offsets.
struct FileInfo {
    std::string path;
    Access access = Access::kRead;
    std::string file_system;  ///< "ext4", "xfs", "tmpfs", "block device", ...
    DeviceId device;
    bool is_block_device = false;
    bool direct = false;  ///< I/O bypasses the page cache
    std::uint32_t memory_align = 1;
    std::uint32_t read_align = 1;
    std::uint32_t write_align = 1;
    std::uint32_t block_bytes = 4096;  ///< block of the file system
    std::string reason;                ///< the source of the alignments, or why it is not direct
    bool append = false;               ///< open for append()
    std::uint64_t buffer_bytes = 0;    ///< limit on the bytes that append() gathers
    CachePolicy cache = CachePolicy::kAuto;  ///< the policy it was opened with
    std::string page_cache;                  ///< how reads use the page cache, and why
};

/// An open file, also a block device. Copies share one opening; it is closed by close() or with the
/// last copy, but not before its transfers are finished. Thread-safe except for close(). All calls
/// block and throw Error.
class PENSTOCK_API File {
public:
    /// Not open.
    File() = default;
    /// On this machine's file system.
    explicit File(const std::string& path, const FileOptions& options = {});

    [[nodiscard]] bool is_open() const noexcept { return file_ != nullptr; }
    [[nodiscard]] FileInfo info() const;
    [[nodiscard]] const std::string& path() const;
    /// Bytes.
    [[nodiscard]] std::uint64_t size() const;
    /// The status of the open file, even if another file has its name now.
    [[nodiscard]] FileStatus status() const;
    /// Cuts or extends (with zeros) to `bytes`.
    void truncate(std::uint64_t bytes);
    /// Allocates [offset, offset + bytes) on the device, and extends the file to that size. False
    /// if the file system cannot, which is normal.
    bool preallocate(std::uint64_t offset, std::uint64_t bytes);
    /// Writes `record` to the end of a file that was opened for that (FileOptions::append),
    /// completely, after the records of earlier calls. Other processes may append to the file at
    /// the same time in the same way: their records are never mixed, but their order is undefined.
    /// (Not over NFS.)
    ///
    /// Without a buffer this is one write(2): when it returns, every reader sees the record, and it
    /// survives the death of this process. With a buffer the record may be gathered; a flush writes
    /// complete records. (If SIGKILL hits a process during write(2), Linux ends the call at the
    /// next page. A record that crosses a page may then be truncated.)
    ///
    /// Throws kInvalidArgument for a file that was not opened for appending. After an error of the
    /// system (a full disk), a record that would be gathered is not accepted. Of a record that the
    /// system wrote only partly, nothing stays if nobody else has the file open; otherwise the
    /// message says how many bytes of it are in the file, and from which byte on.
    void append(ConstMemory record);
    /// Writes the records that append() has gathered. After an error the unwritten ones stay
    /// gathered, and the next flush continues. Does nothing for files without a buffer.
    void flush();
    /// Bytes that append() has gathered and that are not yet in the file.
    [[nodiscard]] std::uint64_t buffered_bytes() const;
    /// Makes data, size and name survive a power cut, including gathered records.
    void sync();
    /// Syncs only data and size. For many files of one folder: FileSystem::sync_folder() then syncs
    /// all their names at once.
    void sync_data();
    /// Closes the file. Throws the error of closing, or of writing gathered records, which are then
    /// lost. (Without close(), the destructor of the last copy does the same, and errors are not
    /// reported.) May be called again.
    void close();

    /// For Engine and FileSystem.
    [[nodiscard]] const std::shared_ptr<os::File>& handle() const noexcept { return file_; }
    explicit File(std::shared_ptr<os::File> file) : file_(std::move(file)) {}

private:
    friend class FileSystem;

    std::shared_ptr<os::File> file_;
    std::shared_ptr<os::Appender> appender_;  ///< of a file that is open for append()
};

/// An advisory lock on a file, held until the last copy is gone.
class PENSTOCK_API FileLock {
public:
    FileLock() = default;
    explicit FileLock(std::shared_ptr<os::FileLock> lock) : lock_(std::move(lock)) {}
    /// Whether it is held, and on the file that its path names now. A lock on a file that was
    /// removed or replaced meanwhile excludes no process.
    [[nodiscard]] bool held() const noexcept;

private:
    std::shared_ptr<os::FileLock> lock_;
};

/// An open folder. Operations apply to this folder, even if its path names another one by then. A
/// name is one component of a path (kInvalidArgument otherwise), and symbolic links are never
/// followed: a tree can be removed without touching the targets of its links. Copies share one
/// descriptor, which is closed with the last of them. Thread-safe. All calls block and throw Error
/// with the operation and path.
class PENSTOCK_API Folder {
public:
    /// Not open.
    Folder() = default;

    [[nodiscard]] bool is_open() const noexcept { return folder_ != nullptr; }
    [[nodiscard]] const std::string& path() const;
    /// Names, sorted, without "." and "..".
    [[nodiscard]] std::vector<std::string> list() const;
    [[nodiscard]] FileStatus status(const std::string& name) const;
    /// ENOTDIR or ELOOP for anything but a folder, also for a link to one. EXDEV if another file
    /// system, or another part of this one (a bind mount), is mounted there.
    [[nodiscard]] Folder open_folder(const std::string& name) const;
    /// Removes a file or a symbolic link; EISDIR for a folder.
    void remove(const std::string& name) const;
    /// Removes an empty folder; ENOTDIR for anything else, also for a link to a folder.
    void remove_folder(const std::string& name) const;
    /// Renames within this folder; replaces `to` atomically if it exists.
    void rename(const std::string& from, const std::string& to) const;
    /// As FileSystem::take_attributes(), for this folder: the permission bits of another one and,
    /// if permitted, its owner, group, ACLs (also the default one) and "user." attributes.
    /// kUnsupported where a file system has none.
    void take_attributes(const std::string& from) const;
    /// Makes its names survive a power cut.
    void sync() const;
    /// Takes an exclusive lock on the folder itself, against processes that lock it too; creates no
    /// file. Throws an Error with EWOULDBLOCK if it is held.
    [[nodiscard]] FileLock lock() const;

    /// For FileSystem.
    explicit Folder(std::shared_ptr<os::Folder> folder) : folder_(std::move(folder)) {}

private:
    std::shared_ptr<os::Folder> folder_;
};

/// Operations on storage other than transfers. Thread-safe. All calls block and throw Error with
/// the operation and path. Calls of an empty one (from nullptr, or moved-from) throw
/// kInvalidArgument.
class PENSTOCK_API FileSystem {
public:
    /// The file system of each path, by how it begins: for now that of this machine, and paths that
    /// begin with s3://, gs://, hf://, http:// or https:// throw an Error with ENOENT. (./s3://x is
    /// on this machine.)
    [[nodiscard]] static FileSystem any();
    /// The file system of this machine, whatever a path begins with.
    [[nodiscard]] static FileSystem local();

    [[nodiscard]] File open(const std::string& path, const FileOptions& options = {}) const;
    /// Replaces `to` atomically if it exists.
    void rename(const std::string& from, const std::string& to) const;
    /// Exchanges two names of one file system, atomically; both have to be there. EINVAL or ENOSYS
    /// where the file system has no such operation.
    void exchange(const std::string& one, const std::string& other) const;
    /// Makes a second name for the same file.
    void link(const std::string& from, const std::string& to) const;
    /// Makes a symbolic link to `target`, which may be missing. Never replaces.
    void symbolic_link(const std::string& target, const std::string& path) const;
    /// Removes a file, a symbolic link (not its target) or an empty folder.
    void remove(const std::string& path) const;
    /// Makes one folder, without missing parents.
    void make_folder(const std::string& path) const;
    /// Names, sorted, without "." and "..".
    [[nodiscard]] std::vector<std::string> list(const std::string& path) const;
    [[nodiscard]] Space space(const std::string& path) const;
    [[nodiscard]] FileStatus status(const std::string& path) const;
    /// The same, or nothing if there is no such name (ENOENT, ENOTDIR, ENAMETOOLONG).
    [[nodiscard]] std::optional<FileStatus> find(const std::string& path) const;
    /// Whether a file begins with these bytes, at most 4 KiB: what it is. Follows no symbolic link.
    /// Blocks; data is read by an Engine.
    [[nodiscard]] bool begins_with(const std::string& path, std::string_view bytes) const;
    /// The absolute path without symbolic links. A part at the end that does not exist yet stays as
    /// written.
    [[nodiscard]] std::string resolve(const std::string& path) const;
    /// Gives `to` the permission bits of `from`; if permitted also its owner and group, its POSIX
    /// ACL and its "user." extended attributes. Other extended attributes, flags (chattr) and times
    /// are not copied.
    void take_attributes(const std::string& from, const File& to) const;
    /// Sets FileStatus::modified_ns, as exactly as the file system keeps it; no symbolic link is
    /// followed. May be lost with a power cut.
    void set_modified(const std::string& path, std::int64_t since_1970_ns) const;
    /// Opens a folder; follows symbolic links in the path.
    [[nodiscard]] Folder open_folder(const std::string& path) const;
    /// Takes an exclusive lock on a regular file, which is made if it does not exist; `make` false:
    /// ENOENT then. Throws an Error with EWOULDBLOCK if it is held, with ELOOP for a symbolic link.
    [[nodiscard]] FileLock lock(const std::string& path, bool make = true) const;
    /// Makes the names in a folder survive a power cut.
    void sync_folder(const std::string& path) const;

    /// For Engine, and for file systems that come with the library.
    [[nodiscard]] const std::shared_ptr<os::FileSystem>& handle() const noexcept { return impl_; }
    explicit FileSystem(std::shared_ptr<os::FileSystem> impl) : impl_(std::move(impl)) {}

private:
    [[nodiscard]] os::FileSystem& of(const char* operation, const std::string& path) const;

    std::shared_ptr<os::FileSystem> impl_;
    bool by_path_ = false;  ///< of any()
};

}  // namespace penstock
