// SPDX-License-Identifier: Apache-2.0
#include "os/local_file.hpp"

#include "base/assert.hpp"
#include "base/path.hpp"
#include "os/local_folder.hpp"
#include "os/machine/limits.hpp"
#include "os/statx.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <pthread.h>
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

// Counts in the parent and in the child.
std::uint32_t forks_so_far() {
    static std::atomic<std::uint32_t> forks{0};
    static const int counts = ::pthread_atfork(
        nullptr, [] { ++forks; }, [] { ++forks; });
    static_cast<void>(counts);
    return forks;
}

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

// A file that only one opening has. A lease is granted to no other, and keeps others from opening
// the file until it is given back. Its signal, when another process wants to open the file, is one
// that is ignored by default. A child of a fork shares the opening, and the lease does not count
// it.
class SoleUse {
public:
    /// `forks`: forks_so_far() when it was opened.
    SoleUse(int fd, std::uint32_t forks)
        : fd_(fd),
          held_(forks == forks_so_far() && ::fcntl(fd, F_SETSIG, SIGURG) == 0 &&
                ::fcntl(fd, F_SETLEASE, F_WRLCK) == 0) {}
    SoleUse(const SoleUse&) = delete;
    SoleUse& operator=(const SoleUse&) = delete;
    ~SoleUse() {
        if (held_) {
            ::fcntl(fd_, F_SETLEASE, F_UNLCK);
        }
    }
    explicit operator bool() const { return held_; }

private:
    const int fd_;
    const bool held_;
};

}  // namespace

LocalFile::LocalFile(FileInfo info, UniqueFd buffered, UniqueFd direct)
    : File(std::move(info)),
      buffered_(buffered.release()),
      direct_(direct.release()),
      forks_(forks_so_far()) {
    PENSTOCK_ASSERT(buffered_.load() >= 0);
}

LocalFile::~LocalFile() {
    drop_companion();
    close_descriptor(direct_);
    give_back_room();
    close_descriptor(buffered_);
}

int LocalFile::descriptor(IoPath io) const {
    return io == IoPath::kDirect ? direct_.load() : buffered_.load();
}

std::int64_t LocalFile::read_at(IoPath io, std::uint64_t offset, std::span<const iovec> pieces) {
    const ssize_t got =
        ::preadv(descriptor(io), pieces.data(), piece_count(pieces), static_cast<off_t>(offset));
    return got < 0 ? -errno : got;
}

std::int64_t LocalFile::write_at(IoPath io, std::uint64_t offset, std::span<const iovec> pieces) {
    const ssize_t put =
        ::pwritev(descriptor(io), pieces.data(), piece_count(pieces), static_cast<off_t>(offset));
    return put < 0 ? -errno : put;
}

std::int64_t LocalFile::append_some(std::span<const std::byte> bytes) {
    const ssize_t put =
        info_.append ? ::write(buffered_.load(), bytes.data(), bytes.size()) : ssize_t{-1};
    return put < 0 ? (info_.append ? -errno : -EBADF) : put;
}

// The kernel moves the position of the opening behind what it appended.
std::uint64_t LocalFile::appended_to() const {
    const off_t end = ::lseek(buffered_.load(), 0, SEEK_CUR);
    return end < 0 ? 0 : static_cast<std::uint64_t>(end);
}

bool LocalFile::cut_back(std::uint64_t end, std::uint64_t bytes) {
    const int fd = buffered_.load();
    const SoleUse sole(fd, forks_);
    struct stat status {};
    return sole && bytes <= end && ::fstat(fd, &status) == 0 &&
           static_cast<std::uint64_t>(status.st_size) == end &&
           ::ftruncate(fd, static_cast<off_t>(end - bytes)) == 0;
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

// ext4 keeps what it got before the disk was full. Without the size, that is room behind the end,
// which a refused caller does not see.
Result<void> LocalFile::reserve(std::uint64_t offset, std::uint64_t bytes) {
    PENSTOCK_CHECK(usable("preallocate", true));
    const std::uint64_t end = base::checked_add(offset, bytes).value_or(UINT64_MAX);
    if (bytes != 0 && !info_.is_block_device && end > file_size_limit()) {
        return fail(system_error(EFBIG, "preallocate", info_.path, offset));
    }
    for (std::uint64_t seen = room_end_.load(); seen < end && bytes != 0;) {
        if (room_end_.compare_exchange_weak(seen, end)) {
            break;
        }
    }
    return allocate(FALLOC_FL_KEEP_SIZE, offset, bytes);
}

// The second call only moves the size: writes that extend a file wait for one another. It takes 2
// to 4 us, but on tmpfs half as long as the first, and tmpfs undoes what it refuses.
Result<void> LocalFile::preallocate(std::uint64_t offset, std::uint64_t bytes) {
    if (!info_.in_memory) {
        auto reserved = reserve(offset, bytes);
        if (!reserved && reserved.error().code != ErrorCode::kUnsupported) {
            return reserved;
        }
    }
    return allocate(0, offset, bytes);
}

Result<void> LocalFile::allocate(int mode, std::uint64_t offset, std::uint64_t bytes) {
    PENSTOCK_ASSERT(mode == 0 || mode == FALLOC_FL_KEEP_SIZE);  // others take bytes away
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
    // A sandbox may refuse this call and allow the write; if the file may not grow, the write
    // reports it. Some kernels undo their work on a signal: a fast timer must not keep us here.
    int interruptions = 0;
    while (::fallocate(fd, mode, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
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
    PENSTOCK_ASSERT(fd >= 0);
    // fdatasync covers the size and the extents; only times are left out.
    while (::fdatasync(fd) != 0) {
        if (errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS) {
            return fail(system_error(
                errno, "sync", info_.path, kNoOffset,
                fmt::format("this {} has no sync of files, so nothing there is known to survive a "
                            "power cut; write without a sync (sync=False), or to a file system "
                            "that has one, and copy the file",
                            info_.file_system)));
        }
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
    const bool known = statx_of(descriptor(IoPath::kBuffered), kStatxSize, x, true) == 0 &&
                       (x.mask & kStatxSize) != 0;
    return known ? x.bytes : 0;
}

void LocalFile::take_back() {
    const int fd = buffered_.load();
    if (!info_.created || fd < 0) {
        return;
    }
    drop_companion();
    close_descriptor(direct_);
    const SoleUse sole(fd, forks_);
    struct stat status {};
    if (!sole || ::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != 0 ||
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

// Frees what was reserved behind the end and not written, which may be all that the disk had left.
// After the direct descriptor is closed. Bytes that others write there at this moment would go too.
void LocalFile::give_back_room() {
    PENSTOCK_ASSERT(direct_.load() < 0);
    const int fd = buffered_.load();
    struct stat status {};
    const auto has_room = [&] {
        return ::fstat(fd, &status) == 0 && static_cast<std::uint64_t>(status.st_size) < room_end_;
    };
    if (room_end_ == 0 || fd < 0 || !has_room()) {
        return;
    }
    const SoleUse sole(fd, forks_);
    if (sole && has_room()) {
        static_cast<void>(::ftruncate(fd, status.st_size));
    }
}

Result<void> LocalFile::close() {
    PENSTOCK_CHECK(usable("close", false));
    drop_companion();
    const int direct_errno = close_descriptor(direct_);
    give_back_room();
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
