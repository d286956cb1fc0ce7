// SPDX-License-Identifier: Apache-2.0
#include "os/local_file_system.hpp"

#include "base/clock.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "os/local_file.hpp"
#include "os/local_folder.hpp"
#include "os/local_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>

namespace penstock::os {

using base::Error;
using base::fail;
using base::Result;
using base::system_error;
using base::UniqueFd;

namespace {

// Names both paths in the error of an operation on two.
Error error_of_two(int system_errno, const char* operation, const std::string& from,
                   const std::string& to) {
    Error e = system_error(system_errno, operation, from);
    e.message = fmt::format("to '{}': {}", to, e.message);
    return e;
}

// Refuses files that no lock should use. With a symbolic link its target would be made, or locked
// and written to by the holder of the lock; a pipe, a device or a folder is no lock file, and
// opening it may have side effects.
Result<void> check_lockable(const std::string& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) {
        return {};
    }
    const int number = S_ISLNK(status.st_mode) ? ELOOP : S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    return fail(system_error(number, "lock", path, kNoOffset,
                             "a lock is taken on a regular file, and this is not one; find out who "
                             "made it, and remove it"));
}

Result<std::unique_ptr<FileLock>> lock_file(const std::string& path, bool make) {
    while (true) {
        PENSTOCK_CHECK(check_lockable(path));
        constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW;
        UniqueFd fd(::open(path.c_str(), make ? kFlags | O_CREAT : kFlags, 0666));
        if (!fd) {
            if (errno == EINTR) {
                continue;
            }
            return fail(system_error(errno, "lock", path));
        }
        // flock and not fcntl: the descriptor holds it, so that closing another one of the same
        // file in this process does not release it.
        if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno == EINTR) {
                continue;
            }
            return fail(system_error(errno, "lock", path, kNoOffset,
                                     errno == EWOULDBLOCK
                                         ? "another process holds the lock; wait until it is done, "
                                           "or find it with 'fuser' on this file"
                                         : ""));
        }
        // The last holder may have removed the file; a lock on a file without a name excludes no
        // process.
        struct stat locked {};
        struct stat named {};
        const bool known = ::fstat(fd.get(), &locked) == 0 && ::lstat(path.c_str(), &named) == 0;
        if (!known && errno != ENOENT && errno != EINTR) {
            return fail(system_error(errno, "lock", path));
        }
        if (known && locked.st_dev == named.st_dev && locked.st_ino == named.st_ino) {
            return std::make_unique<LocalLock>(std::move(fd), path);
        }
    }
}

// The target of a symbolic link, relative to its folder.
Result<std::string> target_of_link(const std::string& path) {
    std::string target(PATH_MAX, '\0');
    const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
    if (length < 0) {
        return fail(system_error(errno, "resolve", path));
    }
    target.resize(static_cast<std::size_t>(length));
    return target.starts_with('/') ? target : base::join(base::folder_of(path), target);
}

// realpath() of the existing part, and the rest after it. A dangling link counts as its target,
// because a file opened by its name would be made there.
Result<std::string> resolve_path(std::string path) {
    constexpr int kLinksMax = 40;  // as the kernel
    std::string rest;
    for (int links = 0; links < kLinksMax;) {
        const std::unique_ptr<char, void (*)(void*)> real(
            ::realpath(path.empty() ? "." : path.c_str(), nullptr), &std::free);
        if (real) {
            const std::string there = real.get();
            return rest.empty() ? there : (there == "/" ? rest : there + rest);
        }
        if (errno != ENOENT || path.empty()) {
            return fail(system_error(errno, "resolve", path.empty() ? "." : path));
        }
        struct stat status {};
        if (::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
            PENSTOCK_TRY(target, target_of_link(path));
            path = std::move(target);
            ++links;
            continue;
        }
        while (path.size() > 1 && path.ends_with('/')) {
            path.pop_back();
        }
        const std::size_t slash = path.rfind('/');
        const std::string name(base::last_name(path));
        if (name == "..") {
            // It leads out of a folder that does not exist.
            return fail(system_error(ENOENT, "resolve", path));
        }
        rest = name == "." ? rest : "/" + name + rest;
        path = slash == std::string::npos ? "" : path.substr(0, std::max<std::size_t>(slash, 1));
    }
    return fail(system_error(ELOOP, "resolve", path));
}

constexpr const char* kAclName = "system.posix_acl_access";
constexpr const char* kDefaultAclName = "system.posix_acl_default";  // folders alone have it

// Copies "user." attributes and the ACL, if permitted: a file without them is better than no file.
// The administrator sets attributes of the "security." and "trusted." kinds. True if the ACL, whose
// group bits are those of the mode, was copied.
bool copy_extended(const std::string& from, int to) {
    const ssize_t bytes = ::listxattr(from.c_str(), nullptr, 0);
    std::string names(bytes > 0 ? static_cast<std::size_t>(bytes) : 0, '\0');
    const ssize_t listed =
        names.empty() ? 0 : ::listxattr(from.c_str(), names.data(), names.size());
    bool has_acl = false;
    std::string value;
    for (ssize_t at = 0; at < listed;) {
        const std::string name = names.c_str() + at;
        at += static_cast<ssize_t>(name.size()) + 1;
        const bool is_acl = name == kAclName;
        const ssize_t size = is_acl || name == kDefaultAclName || name.starts_with("user.")
                                 ? ::getxattr(from.c_str(), name.c_str(), nullptr, 0)
                                 : -1;
        if (size < 0) {
            continue;
        }
        value.resize(static_cast<std::size_t>(size));
        const ssize_t got = ::getxattr(from.c_str(), name.c_str(), value.data(), value.size());
        if (got == size && ::fsetxattr(to, name.c_str(), value.data(), value.size(), 0) == 0) {
            has_acl = has_acl || is_acl;
        }
    }
    return has_acl;
}

class LocalFileSystem final : public FileSystem {
public:
    Result<std::shared_ptr<File>> open(const std::string& path,
                                       const FileOptions& options) override {
        return open_local_file(path, options);
    }

    Result<std::shared_ptr<File>> open_once(const std::string& path, const FileOptions& options,
                                            std::uint64_t small_bytes) override {
        return open_local_file(path, options, small_bytes);
    }

    Result<void> rename(const std::string& from, const std::string& to) override {
        PENSTOCK_CHECK(check_path("rename", from));
        PENSTOCK_CHECK(check_path("rename", to));
        if (::rename(from.c_str(), to.c_str()) != 0) {
            return fail(error_of_two(errno, "rename", from, to));
        }
        return {};
    }

    // The system call itself: the glibc of the oldest systems has no function for it.
    Result<void> exchange(const std::string& one, const std::string& other) override {
        PENSTOCK_CHECK(check_path("exchange", one));
        PENSTOCK_CHECK(check_path("exchange", other));
        constexpr unsigned kExchange = 2;  // RENAME_EXCHANGE
        if (::syscall(SYS_renameat2, AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), kExchange) !=
            0) {
            return fail(error_of_two(errno, "exchange", one, other));
        }
        return {};
    }

    Result<void> link(const std::string& from, const std::string& to) override {
        PENSTOCK_CHECK(check_path("link", from));
        PENSTOCK_CHECK(check_path("link", to));
        if (::link(from.c_str(), to.c_str()) != 0) {
            return fail(error_of_two(errno, "link", from, to));
        }
        return {};
    }

    Result<void> symbolic_link(const std::string& target, const std::string& path) override {
        PENSTOCK_CHECK(check_path("symbolic_link", target));
        PENSTOCK_CHECK(check_path("symbolic_link", path));
        if (::symlink(target.c_str(), path.c_str()) != 0) {
            return fail(error_of_two(errno, "symbolic_link", path, target));
        }
        return {};
    }

    Result<void> remove(const std::string& path) override {
        PENSTOCK_CHECK(check_path("remove", path));
        if (std::remove(path.c_str()) != 0) {
            return fail(
                system_error(errno, "remove", path, kNoOffset,
                             errno == ENOTEMPTY ? "remove what is in the folder first" : ""));
        }
        return {};
    }

    Result<void> make_folder(const std::string& path) override {
        PENSTOCK_CHECK(check_path("make_folder", path));
        if (::mkdir(path.c_str(), 0777) != 0) {
            return fail(system_error(errno, "make_folder", path, kNoOffset,
                                     errno == ENOENT ? "make the folder above it first" : ""));
        }
        return {};
    }

    Result<std::vector<std::string>> list(const std::string& path) override {
        return list_local_folder(path);
    }

    Result<Space> space(const std::string& path) override {
        PENSTOCK_CHECK(check_path("space", path));
        struct statvfs status {};
        while (::statvfs(path.c_str(), &status) != 0) {
            if (errno != EINTR) {
                return fail(
                    system_error(errno, "space", path, kNoOffset,
                                 errno == ENOENT ? "give a file or folder that is there" : ""));
            }
        }
        return Space{std::uint64_t{status.f_blocks} * status.f_frsize,
                     std::uint64_t{status.f_bavail} * status.f_frsize};
    }

    Result<FileStatus> status(const std::string& path) override {
        PENSTOCK_CHECK(check_path("status", path));
        struct stat status {};
        if (::lstat(path.c_str(), &status) != 0) {
            return fail(system_error(errno, "status", path));
        }
        return status_from(status);
    }

    Result<std::string> resolve(const std::string& path) override {
        PENSTOCK_CHECK(check_path("resolve", path));
        return resolve_path(path);
    }

    Result<void> take_attributes(const std::string& from, File& to) override {
        PENSTOCK_CHECK(check_path("take_attributes", from));
        const int fd = to.descriptor(IoPath::kBuffered);
        if (fd < 0) {
            return fail(system_error(EBADF, "take_attributes", to.info().path));
        }
        return take_local_attributes(from, fd, to.info().path);
    }

    Result<void> set_modified(const std::string& path, std::int64_t since_1970_ns) override {
        PENSTOCK_CHECK(check_path("set_modified", path));
        timespec times[2] = {{0, UTIME_OMIT}, {}};
        times[1].tv_nsec =
            (since_1970_ns % base::kNanosPerSecond + base::kNanosPerSecond) % base::kNanosPerSecond;
        times[1].tv_sec = (since_1970_ns - times[1].tv_nsec) / base::kNanosPerSecond;
        if (::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) {
            return fail(system_error(errno, "set_modified", path));
        }
        return {};
    }

    Result<std::unique_ptr<FileLock>> lock(const std::string& path, bool make) override {
        PENSTOCK_CHECK(check_path("lock", path));
        return lock_file(path, make);
    }

    Result<std::shared_ptr<Folder>> open_folder(const std::string& path) override {
        return LocalFolder::open(path);
    }

    Result<void> sync_folder(const std::string& path) override { return sync_local_folder(path); }
};

}  // namespace

Result<void> take_local_attributes(const std::string& from, int fd, const std::string& to) {
    struct stat status {};
    if (::stat(from.c_str(), &status) != 0) {
        return fail(system_error(errno, "take_attributes", from));
    }
    // The owner first, because changing it clears setuid and setgid. Only root may give files
    // away; other users keep at least the group, if they are in it.
    if (::fchown(fd, status.st_uid, status.st_gid) != 0) {
        static_cast<void>(::fchown(fd, static_cast<uid_t>(-1), status.st_gid) == 0);
    }
    static_cast<void>(::fremovexattr(fd, kDefaultAclName) == 0);  // of the folder above
    const bool has_acl = copy_extended(from, fd);
    if (!has_acl) {
        // A folder's default ACL on the new file would grant access that the old file did not.
        static_cast<void>(::fremovexattr(fd, kAclName) == 0);
    }
    // Some mounts refuse each chmod, and give all files one mode.
    struct stat made {};
    const bool is_same =
        !has_acl && ::fstat(fd, &made) == 0 && (made.st_mode & 07777U) == (status.st_mode & 07777U);
    if (!is_same && ::fchmod(fd, status.st_mode & 07777U) != 0) {
        return fail(system_error(errno, "take_attributes", to));
    }
    return {};
}

bool is_missing(const std::string& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) != 0 &&
           (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG);
}

std::shared_ptr<FileSystem> local_file_system() {
    static const auto* const one = new std::shared_ptr<FileSystem>(new LocalFileSystem);
    return *one;
}

}  // namespace penstock::os
