// SPDX-License-Identifier: Apache-2.0
#include "os/local_file.hpp"

#include "base/path.hpp"
#include "os/local_folder.hpp"
#include "os/statx.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>

namespace penstock::os {

using base::Error;
using base::fail;
using base::Result;
using base::system_error;
using base::UniqueFd;

namespace {

constexpr int kInterruptionsMax = 100;

int piece_count(std::span<const iovec> pieces) {
    return static_cast<int>(std::min<std::size_t>(pieces.size(), IOV_MAX));
}

// The path of the file now: names may have changed since the opening, and its path may have led
// through links. Empty when it has no name any more, or when /proc cannot tell.
std::string current_path(int fd) {
    std::array<char, PATH_MAX> target{};
    const std::string link = fmt::format("/proc/self/fd/{}", fd);
    const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
    if (length <= 0 || target[0] != '/' || static_cast<std::size_t>(length) == target.size()) {
        return {};
    }
    return {target.data(), static_cast<std::size_t>(length)};
}

bool names_inode(const std::string& path, const struct stat& inode) {
    struct stat there {};
    return !path.empty() && ::stat(path.c_str(), &there) == 0 && there.st_dev == inode.st_dev &&
           there.st_ino == inode.st_ino;
}

int close_descriptor(std::atomic<int>& fd) {
    const int old = fd.exchange(-1);
    // The descriptor is closed even after EINTR.
    return old >= 0 && ::close(old) != 0 && errno != EINTR ? errno : 0;
}

}  // namespace

LocalFile::LocalFile(FileInfo info, UniqueFd buffered, UniqueFd direct)
    : File(std::move(info)), buffered_(buffered.release()), direct_(direct.release()) {}

LocalFile::~LocalFile() {
    drop_companion();
    close_descriptor(direct_);
    close_descriptor(buffered_);
}

int LocalFile::descriptor(Lane lane) const {
    return lane == Lane::kDirect ? direct_.load() : buffered_.load();
}

std::int64_t LocalFile::read_at(Lane lane, std::uint64_t offset, std::span<const iovec> pieces) {
    const ssize_t got =
        ::preadv(descriptor(lane), pieces.data(), piece_count(pieces), static_cast<off_t>(offset));
    return got < 0 ? -errno : got;
}

std::int64_t LocalFile::write_at(Lane lane, std::uint64_t offset, std::span<const iovec> pieces) {
    const ssize_t put =
        ::pwritev(descriptor(lane), pieces.data(), piece_count(pieces), static_cast<off_t>(offset));
    return put < 0 ? -errno : put;
}

std::int64_t LocalFile::append_some(std::span<const std::byte> bytes) {
    const ssize_t put =
        info_.append ? ::write(buffered_.load(), bytes.data(), bytes.size()) : ssize_t{-1};
    return put < 0 ? (info_.append ? -errno : -EBADF) : put;
}

// The pages of a file on overlayfs are those of the file below, and it says 0 of its own.
int LocalFile::cached_pages(std::uint64_t offset, std::uint64_t bytes, CachedPages& found) const {
    if (info_.file_system == "overlay") {
        return EOPNOTSUPP;
    }
    return cachestat(buffered_.load(), offset, bytes, found);
}

std::int64_t LocalFile::read_cached(std::uint64_t offset, std::span<const iovec> pieces) {
    const ssize_t got = ::preadv2(buffered_.load(), pieces.data(), piece_count(pieces),
                                  static_cast<off_t>(offset), RWF_NOWAIT);
    return got < 0 ? -errno : got;
}

Result<int> LocalFile::usable(const char* operation, bool writes) const {
    const int fd = buffered_.load();
    if (fd < 0) {
        Error e = base::error(ErrorCode::kClosed, operation, "the file is closed; open it again",
                              info_.path);
        e.system_errno = EBADF;
        return fail(std::move(e));
    }
    if (writes && info_.access == Access::kRead) {
        return fail(system_error(EBADF, operation, info_.path, kNoOffset,
                                 "the file is open for reading only; open it for writing"));
    }
    return fd;
}

Result<std::uint64_t> LocalFile::size() const {
    PENSTOCK_TRY(fd, usable("size", false));
    if (info_.is_block_device) {
        std::uint64_t bytes = 0;
        if (::ioctl(fd, BLKGETSIZE64, &bytes) != 0) {
            return fail(system_error(errno, "size", info_.path));
        }
        return bytes;
    }
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
        return fail(system_error(errno, "size", info_.path));
    }
    return static_cast<std::uint64_t>(status.st_size);
}

Result<FileStatus> LocalFile::status() const {
    PENSTOCK_TRY(fd, usable("status", false));
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
        return fail(system_error(errno, "status", info_.path));
    }
    return status_from(status);
}

Result<void> LocalFile::truncate(std::uint64_t bytes) {
    PENSTOCK_TRY(fd, usable("truncate", true));
    if (info_.is_block_device) {
        return fail(base::error(ErrorCode::kUnsupported, "truncate",
                                "cannot truncate a block device; its size is fixed", info_.path));
    }
    if (bytes > INT64_MAX) {
        return fail(system_error(EFBIG, "truncate", info_.path, bytes));
    }
    while (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
        if (errno != EINTR) {
            return fail(system_error(errno, "truncate", info_.path, bytes));
        }
    }
    return {};
}

Result<void> LocalFile::preallocate(std::uint64_t offset, std::uint64_t bytes) {
    PENSTOCK_TRY(fd, usable("preallocate", true));
    if (info_.is_block_device) {
        return fail(base::error(ErrorCode::kUnsupported, "preallocate",
                                "a block device has all its room already", info_.path));
    }
    if (bytes == 0) {
        return {};
    }
    const auto end = base::checked_add(offset, bytes);
    if (!end || *end > INT64_MAX) {
        return fail(system_error(EFBIG, "preallocate", info_.path, offset));
    }
    // Mode 0: with FALLOC_FL_KEEP_SIZE the writes would still extend the file, one after the other.
    // A sandbox may refuse this call and allow the write; if the file may not grow, the write
    // reports it. Some kernels undo their work on a signal: a fast timer must not keep us here.
    int interruptions = 0;
    while (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
        if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EPERM || errno == EACCES ||
            (errno == EINTR && ++interruptions >= kInterruptionsMax)) {
            const int refusal = errno;
            Error e = base::error(
                ErrorCode::kUnsupported, "preallocate",
                fmt::format("{} cannot preallocate ({}); writes work all the same, and "
                            "find a full disk later",
                            info_.file_system, std::generic_category().message(refusal)),
                info_.path, offset);
            e.system_errno = refusal;
            return fail(std::move(e));
        }
        if (errno != EINTR) {
            return fail(system_error(errno, "preallocate", info_.path, offset));
        }
    }
    return {};
}

Result<void> LocalFile::sync() {
    PENSTOCK_CHECK(sync_data());
    if (info_.is_block_device) {
        return {};
    }
    PENSTOCK_TRY(fd, usable("sync", false));
    auto done = sync_parent(fd);
    // Other errors (no descriptor left for the folder) lost nothing, and a later sync may succeed.
    if (!done && done.error().system_errno == EIO) {
        lost_errno_.store(EIO);
    }
    return done;
}

Result<void> LocalFile::sync_data() {
    PENSTOCK_TRY(fd, usable("sync", false));
    if (const int lost = lost_errno_.load(); lost != 0) {
        return fail(system_error(lost, "sync", info_.path, kNoOffset,
                                 "an earlier sync of this file failed and its data may be lost; "
                                 "write the data again to a new file"));
    }
    return sync_bytes(fd);
}

Result<void> LocalFile::sync_bytes(int fd) {
    // fdatasync covers the size and the extents; only times are left out.
    while (::fdatasync(fd) != 0) {
        if (errno != EINTR) {
            lost_errno_.store(errno);
            return fail(system_error(lost_errno_.load(), "sync", info_.path, kNoOffset,
                                     "what was written since the last sync may be lost; write it "
                                     "again to a new file, and look at the kernel log (dmesg)"));
        }
    }
    return {};
}

Result<void> LocalFile::sync_parent(int fd) const {
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
        return fail(system_error(errno, "sync", info_.path));
    }
    if (status.st_nlink == 0) {
        return {};  // no name is left that could be lost
    }
    std::string path = current_path(fd);
    if (!names_inode(path, status)) {
        // No /proc, or a name that is not visible here (another root, another hard link).
        std::array<char, PATH_MAX> real{};
        const bool found = ::realpath(info_.path.c_str(), real.data()) != nullptr;
        path = found ? real.data() : "";
    }
    if (names_inode(path, status)) {
        auto done = sync_local_folder(base::folder_of(path));
        if (done || (done.error().system_errno != EACCES && done.error().system_errno != ENOENT)) {
            return done;
        }
    }
    // The folder cannot be opened (no permission to list it) or named: syncs the whole file system.
    if (::syncfs(fd) != 0) {
        return fail(system_error(errno, "sync", info_.path));
    }
    return {};
}

std::string LocalFile::folder_key() const {
    const int fd = buffered_.load();
    struct stat status {};
    if (info_.is_block_device || ::fstat(fd, &status) != 0) {
        return {};
    }
    const std::string path = current_path(fd);
    return names_inode(path, status) ? base::folder_of(path) : std::string();
}

std::uint64_t LocalFile::size_at_hand() const {
    if (info_.is_block_device) {
        return size().value_or(0);
    }
    Statx x;
    const bool known = statx_of(descriptor(Lane::kBuffered), kStatxSize, x, true) == 0 &&
                       (x.mask & kStatxSize) != 0;
    return known ? x.bytes : 0;
}

// A lease is granted only to the holder of the sole descriptor of a file, and keeps others from
// opening it until that is closed. Its signal, when another process wants to open the file, is one
// that is ignored by default.
void LocalFile::take_back() {
    const int fd = buffered_.load();
    if (!info_.created || fd < 0) {
        return;
    }
    drop_companion();
    close_descriptor(direct_);
    struct stat status {};
    if (::fcntl(fd, F_SETSIG, SIGURG) != 0 || ::fcntl(fd, F_SETLEASE, F_WRLCK) != 0 ||
        ::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != 0 ||
        status.st_nlink != 1) {
        return;
    }
    // Checks the name that it was made under, and no other.
    struct stat named {};
    if (::lstat(info_.path.c_str(), &named) == 0 && named.st_dev == status.st_dev &&
        named.st_ino == status.st_ino) {
        ::unlink(info_.path.c_str());
    }
}

Result<void> LocalFile::close() {
    PENSTOCK_CHECK(usable("close", false));
    drop_companion();
    const int direct_errno = close_descriptor(direct_);
    const int buffered_errno = close_descriptor(buffered_);
    const int first = direct_errno != 0 ? direct_errno : buffered_errno;
    if (first != 0) {
        return fail(
            system_error(first, "close", info_.path, kNoOffset,
                         "what was written may be lost; write it again and sync before closing"));
    }
    return {};
}

Result<void> sync_local_folder(const std::string& path) {
    PENSTOCK_TRY(folder, LocalFolder::open(path, "sync_folder"));
    return folder->sync();
}

Result<void> check_path(const char* operation, const std::string& path) {
    if (path.empty()) {
        return fail(base::error(ErrorCode::kInvalidArgument, operation,
                                "the path is empty; give the path of a file"));
    }
    if (path.find('\0') != std::string::npos) {
        return fail(base::error(ErrorCode::kInvalidArgument, operation,
                                "the path holds a zero byte; a path is text without one",
                                path.substr(0, path.find('\0'))));
    }
    return {};
}

}  // namespace penstock::os
