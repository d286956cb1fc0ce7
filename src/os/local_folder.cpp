// SPDX-License-Identifier: Apache-2.0
#include "os/local_folder.hpp"

#include "base/clock.hpp"
#include "os/local_file.hpp"
#include "os/local_file_system.hpp"
#include "os/local_lock.hpp"
#include "os/statx.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <utility>

namespace penstock::os {

using base::fail;
using base::Result;
using base::system_error;
using base::UniqueFd;

namespace {

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOCTTY;

FileKind kind_of(mode_t mode) {
    if (S_ISREG(mode)) {
        return FileKind::kFile;
    }
    if (S_ISDIR(mode)) {
        return FileKind::kFolder;
    }
    return S_ISLNK(mode) ? FileKind::kSymbolicLink : FileKind::kOther;
}

UniqueFd open_retrying(int folder, const char* name, int flags) {
    while (true) {
        const int fd = ::openat(folder, name, flags);
        if (fd >= 0 || errno != EINTR) {
            return UniqueFd(fd);
        }
    }
}

Result<UniqueFd> open_path(const char* operation, const std::string& path) {
    PENSTOCK_CHECK(check_path(operation, path));
    UniqueFd fd = open_retrying(AT_FDCWD, path.c_str(), kFolderFlags);
    if (!fd) {
        return fail(system_error(errno, operation, path));
    }
    return fd;
}

Result<std::vector<std::string>> names_in(UniqueFd fd, const std::string& path) {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::fdopendir(fd.get()), &::closedir);
    if (!folder) {
        return fail(system_error(errno, "list", path));
    }
    static_cast<void>(fd.release());
    std::vector<std::string> names;
    while (true) {
        errno = 0;
        const dirent* entry = ::readdir(folder.get());
        if (entry == nullptr) {
            break;
        }
        const std::string_view name = entry->d_name;
        if (name != "." && name != "..") {
            names.emplace_back(name);
        }
    }
    if (errno != 0) {
        return fail(system_error(errno, "list", path));
    }
    std::sort(names.begin(), names.end());
    return names;
}

// A bind mount has the device of its source, but a mount of its own. If the kernel does not number
// mounts, or a filter forbids statx, only the device is compared.
Result<bool> is_on_same_mount(int one, int other, const std::string& path) {
    struct stat first {};
    struct stat second {};
    if (::fstat(one, &first) != 0 || ::fstat(other, &second) != 0) {
        return fail(system_error(errno, "open_folder", path));
    }
    if (first.st_dev != second.st_dev) {
        return false;
    }
    Statx a{};
    Statx b{};
    const bool known = statx_of(one, kStatxMountId, a) == 0 &&
                       statx_of(other, kStatxMountId, b) == 0 && (a.mask & kStatxMountId) != 0 &&
                       (b.mask & kStatxMountId) != 0;
    return !known || a.mount_id == b.mount_id;
}

}  // namespace

FileStatus status_from(const struct stat& status) {
    return {.kind = kind_of(status.st_mode),
            .bytes = static_cast<std::uint64_t>(status.st_size),
            .links = status.st_nlink,
            .device = {static_cast<std::uint32_t>(major(status.st_dev)),
                       static_cast<std::uint32_t>(minor(status.st_dev))},
            .inode = status.st_ino,
            .mode = status.st_mode & 07777U,
            .modified_ns = std::int64_t{status.st_mtim.tv_sec} * base::kNanosPerSecond +
                           status.st_mtim.tv_nsec};
}

Result<std::shared_ptr<Folder>> LocalFolder::open(const std::string& path, const char* operation) {
    PENSTOCK_TRY(fd, open_path(operation, path));
    return std::make_shared<LocalFolder>(path, std::move(fd));
}

Result<std::vector<std::string>> list_local_folder(const std::string& path) {
    PENSTOCK_TRY(fd, open_path("list", path));
    return names_in(std::move(fd), path);
}

Result<std::vector<std::string>> LocalFolder::list() {
    // Opens its own descriptor: a descriptor has one position in the list of names, shared by all
    // readers.
    UniqueFd fd = open_retrying(fd_.get(), ".", kFolderFlags);
    if (!fd) {
        return fail(system_error(errno, "list", path()));
    }
    return names_in(std::move(fd), path());
}

Result<FileStatus> LocalFolder::status(const std::string& name) {
    PENSTOCK_CHECK(check_name("status", path(), name));
    struct stat status {};
    if (::fstatat(fd_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
        return fail(system_error(errno, "status", path_in(path(), name)));
    }
    return status_from(status);
}

Result<std::shared_ptr<Folder>> LocalFolder::open_folder(const std::string& name) {
    PENSTOCK_CHECK(check_name("open_folder", path(), name));
    const std::string inside = path_in(path(), name);
    UniqueFd fd = open_retrying(fd_.get(), name.c_str(), kFolderFlags | O_NOFOLLOW);
    if (!fd) {
        return fail(system_error(errno, "open_folder", inside));
    }
    PENSTOCK_TRY(same, is_on_same_mount(fd_.get(), fd.get(), inside));
    if (!same) {
        return fail(system_error(EXDEV, "open_folder", inside, kNoOffset,
                                 "another file system, or another part of this one, is mounted "
                                 "there"));
    }
    return std::make_shared<LocalFolder>(inside, std::move(fd));
}

Result<void> LocalFolder::unlink(const char* operation, const std::string& name, int flags) {
    PENSTOCK_CHECK(check_name(operation, path(), name));
    if (::unlinkat(fd_.get(), name.c_str(), flags) != 0) {
        return fail(system_error(errno, operation, path_in(path(), name), kNoOffset,
                                 errno == ENOTEMPTY ? "remove what is in the folder first" : ""));
    }
    return {};
}

Result<void> LocalFolder::remove(const std::string& name) {
    return unlink("remove", name, 0);
}

Result<void> LocalFolder::remove_folder(const std::string& name) {
    return unlink("remove_folder", name, AT_REMOVEDIR);
}

Result<void> LocalFolder::rename(const std::string& from, const std::string& to) {
    PENSTOCK_CHECK(check_name("rename", path(), from));
    PENSTOCK_CHECK(check_name("rename", path(), to));
    if (::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()) != 0) {
        base::Error error = system_error(errno, "rename", path_in(path(), from));
        error.message = fmt::format("to '{}': {}", to, error.message);
        return fail(std::move(error));
    }
    return {};
}

// A file system may have no sync of folders, which is a network or user-space one: its server has
// the names by now. PostgreSQL and LevelDB take these errors so, too.
Result<void> LocalFolder::take_attributes(const std::string& from) {
    return take_local_attributes(from, fd_.get(), path());
}

Result<void> LocalFolder::sync() {
    while (::fsync(fd_.get()) != 0) {
        if (errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS || errno == EBADF) {
            return {};
        }
        if (errno != EINTR) {
            return fail(system_error(errno, "sync_folder", path()));
        }
    }
    return {};
}

Result<std::unique_ptr<FileLock>> LocalFolder::lock() {
    // Opens its own descriptor: the lock is released when that is closed, and not before.
    UniqueFd fd = open_retrying(fd_.get(), ".", kFolderFlags);
    if (!fd) {
        return fail(system_error(errno, "lock folder", path()));
    }
    while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EINTR) {
            return fail(system_error(errno, "lock folder", path()));
        }
    }
    return std::make_unique<LocalLock>(std::move(fd), path());
}

}  // namespace penstock::os
