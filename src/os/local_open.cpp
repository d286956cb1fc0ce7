// SPDX-License-Identifier: Apache-2.0
// Opening a local file. Protocol:
//   1. open through the page cache; know whether this call made the file
//   2. refuse anything but a file or a block device
//   3. query the geometry; under kRequired refuse a file without direct I/O, and remove a new one
//   4. open the same inode once more with O_DIRECT
//   5. truncate, if requested: only now, when nothing but the truncation can fail any more
// A small or a cached file that is read once, or one that gets a few bytes once, is done after 1,
// without a question that its device has answered.
#include "base/align.hpp"
#include "base/assert.hpp"
#include "os/file_system_type.hpp"
#include "os/geometry.hpp"
#include "os/local_file.hpp"
#include "os/machine/block_device.hpp"
#include "os/machine/sysfs.hpp"
#include "os/page_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <string>
#include <string_view>
#include <type_traits>

namespace penstock::os {

using base::Error;
using base::fail;
using base::Result;
using base::system_error;
using base::UniqueFd;

namespace {

int access_flags(Access access) {
    switch (access) {
        case Access::kRead:
            return O_RDONLY;
        case Access::kWrite:
            return O_WRONLY;
        case Access::kReadWrite:
            return O_RDWR;
    }
    return O_RDONLY;
}

struct Opened {
    UniqueFd fd;
    bool created = false;  ///< by this call, so that it may be taken back
    struct stat named {};  ///< of the path just before; st_mode 0 where there was nothing
};

// Never 0, 1 or 2, which are free in a process without standard input and output: what it prints
// would be written into the file.
UniqueFd open_retrying(const char* path, int flags) {
    while (true) {
        UniqueFd fd(::open(path, flags, 0666));
        if (fd && fd.get() <= STDERR_FILENO) {
            return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
        }
        if (fd || errno != EINTR) {
            return fd;
        }
    }
}

Result<Opened> open_buffered(const std::string& path, const FileOptions& options) {
    // open() of a pipe would wait for its other end.
    struct stat status {};
    const int looked =
        options.follow ? ::stat(path.c_str(), &status) : ::lstat(path.c_str(), &status);
    if (looked != 0) {
        status = {};
    } else {
        if (S_ISLNK(status.st_mode)) {
            return fail(system_error(ELOOP, "open", path, kNoOffset,
                                     "a symbolic link is not followed here; give the path that it "
                                     "leads to, or remove it"));
        }
        if (S_ISDIR(status.st_mode)) {
            return fail(system_error(EISDIR, "open", path));
        }
        if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) {
            return fail(base::error(ErrorCode::kUnsupported, "open",
                                    "this is neither a file nor a block device (a pipe, socket or "
                                    "terminal?); give the path of a file",
                                    path));
        }
    }
    const int flags = access_flags(options.access) | O_CLOEXEC | O_NOCTTY |
                      (options.follow ? 0 : O_NOFOLLOW) | (options.append ? O_APPEND : 0);
    if (options.create && options.exclusive) {
        Opened opened{open_retrying(path.c_str(), flags | O_CREAT | O_EXCL), true, status};
        if (!opened.fd) {
            return fail(system_error(errno, "open", path));
        }
        return opened;
    }
    // Another process may make or remove the file between two tries.
    constexpr int kTries = 8;
    bool makes = options.create && looked != 0;
    for (int i = 0; i < kTries; ++i, makes = !makes) {
        Opened opened{open_retrying(path.c_str(), makes ? flags | O_CREAT | O_EXCL : flags), makes,
                      status};
        if (opened.fd) {
            return opened;
        }
        if (!options.create || errno != (makes ? EEXIST : ENOENT)) {
            return fail(system_error(errno, "open", path));
        }
    }
    // A dangling symbolic link: its target is made, which O_EXCL refuses.
    Opened opened{open_retrying(path.c_str(), flags | O_CREAT), false, status};
    if (!opened.fd) {
        return fail(system_error(errno, "open", path));
    }
    return opened;
}

// The process that made the file may have removed it while we waited for it to open
// (File::take_back): data written to it would be lost.
Result<Opened> open_named(const std::string& path, const FileOptions& options) {
    constexpr int kTries = 8;
    for (int tries = 1;; ++tries) {
        PENSTOCK_TRY(opened, open_buffered(path, options));
        struct stat status {};
        if (!options.create || opened.created || tries == kTries ||
            ::fstat(opened.fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
            status.st_nlink != 0) {
            return opened;
        }
    }
}

// Errors that mean that there is no direct I/O here, or that the file may not be opened once more.
// Any other error is a problem that a fallback would hide.
bool says_buffered(int error) {
    constexpr std::array kErrors{EINVAL, EOPNOTSUPP, ENOSYS, EACCES, EPERM, ENOENT, ESTALE};
    return std::find(kErrors.begin(), kErrors.end(), error) != kErrors.end();
}

// Opens the inode of `fd` with O_DIRECT: through /proc, so that it is the same one even if the path
// has changed, else through the path, with a comparison.
UniqueFd open_direct(const UniqueFd& fd, const std::string& path, Access access, int& error) {
    const int flags = access_flags(access) | O_DIRECT | O_CLOEXEC | O_NOCTTY;
    UniqueFd direct = open_retrying(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), flags);
    error = direct ? 0 : errno;
    if (direct || error == EINVAL || error == EMFILE || error == ENFILE) {
        return direct;
    }
    direct = open_retrying(path.c_str(), flags);
    error = direct ? 0 : errno;
    struct stat here {};
    struct stat there {};
    if (direct && (::fstat(fd.get(), &here) != 0 || ::fstat(direct.get(), &there) != 0 ||
                   here.st_dev != there.st_dev || here.st_ino != there.st_ino)) {
        error = ESTALE;
        direct.reset();
    }
    return direct;
}

Result<UniqueFd> open_direct_lane(const UniqueFd& fd, FileInfo& info) {
    Geometry& geometry = info.geometry;
    UniqueFd direct;
    if (geometry.direct) {
        int error = 0;
        direct = open_direct(fd, info.path, info.access, error);
        if (!direct && !says_buffered(error)) {
            return fail(system_error(error, "open", info.path, kNoOffset,
                                     error == EMFILE || error == ENFILE
                                         ? ""
                                         : "the file opens, and not with O_DIRECT; try again, or "
                                           "open it with CachePolicy::kCached"));
        }
        if (!direct) {
            const std::string why =
                error == EINVAL ? fmt::format("{} refuses O_DIRECT for this file", info.file_system)
                                : fmt::format("opening it with O_DIRECT failed: {}",
                                              std::generic_category().message(error));
            const std::uint32_t block_bytes = geometry.block_bytes;
            geometry = Geometry{};
            geometry.block_bytes = block_bytes;
            geometry.reason = why;
        }
    }
    if (info.cache == CachePolicy::kRequired && !direct) {
        return fail(not_direct("open", info));
    }
    PENSTOCK_ASSERT(geometry.direct == static_cast<bool>(direct));
    return direct;
}

DeviceId disk_of(dev_t device) {
    return whole_disk(
        {static_cast<std::uint32_t>(major(device)), static_cast<std::uint32_t>(minor(device))});
}

FileInfo describe(const std::string& path, const FileOptions& options, int fd,
                  const struct stat& status) {
    FileInfo info;
    info.path = path;
    info.access = options.access;
    info.cache = options.cache;
    info.is_block_device = S_ISBLK(status.st_mode);
    const dev_t device = info.is_block_device ? status.st_rdev : status.st_dev;
    info.device = disk_of(device);
    ProbedFile probed = probe_file(fd);
    info.file_system = std::move(probed.file_system);
    info.geometry = std::move(probed.geometry);
    info.append = options.append;
    if (options.cache == CachePolicy::kCached || options.append) {
        Geometry buffered;
        buffered.block_bytes = info.geometry.block_bytes;
        buffered.reason = options.append ? "open for appending, through the page cache"
                                         : "through the page cache by request";
        info.geometry = buffered;
    }
    return info;
}

// Does everything after the first open; after an error the caller removes a file that it made.
Result<std::shared_ptr<File>> finish(const std::string& path, const FileOptions& options,
                                     UniqueFd fd, bool created) {
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) {
        return fail(system_error(errno, "open", path));
    }
    if (S_ISDIR(status.st_mode)) {
        return fail(system_error(EISDIR, "open", path));
    }
    if (options.append && S_ISBLK(status.st_mode)) {
        return fail(base::error(ErrorCode::kUnsupported, "open",
                                "this is a block device, whose size is fixed: nothing can be "
                                "appended; open it without append",
                                path));
    }
    FileInfo info = describe(path, options, fd.get(), status);
    info.created = created;
    PENSTOCK_TRY(direct, open_direct_lane(fd, info));
    info.keeps_cache = !info.is_block_device && keeps_page_cache(info.file_system);
    info.in_memory = !info.is_block_device && is_in_memory(info.file_system);
    info.in_user_space = is_in_user_space(info.file_system);
    info.asks_cache = info.keeps_cache && direct && options.cache == CachePolicy::kAuto;
    if (options.truncate && !info.is_block_device && status.st_size != 0) {
        while (::ftruncate(fd.get(), 0) != 0) {
            if (errno != EINTR) {
                return fail(system_error(errno, "open", path, kNoOffset,
                                         "the file could not be cut to zero bytes"));
            }
        }
    }
    return std::make_shared<LocalFile>(std::move(info), std::move(fd), std::move(direct));
}

// A device as files on it found it. Another one may be mounted under its number: so not for long.
// Each thread has one. It is trivially destructible: for a destructor, glibc allocates at a
// thread's first use, and ends the process where memory is out.
struct KnownDevice {
    dev_t number = 0;
    time_t until_s = 0;
    bool passes_small = false;  ///< its small files may go through the page cache
    bool keeps_page_cache = false;
    DeviceId disk;
    std::array<char, 40> file_system{};  ///< its name, cut to fit; ends with a zero

    void name(std::string_view text) {
        file_system = {};
        std::copy_n(text.begin(), std::min(text.size(), file_system.size() - 1),
                    file_system.begin());
    }
};
static_assert(std::is_trivially_destructible_v<KnownDevice>);

const KnownDevice& known_device(dev_t number, int fd) {
    constexpr time_t kForSeconds = 2;
    static thread_local KnownDevice last;
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    if (last.number == number && now.tv_sec < last.until_s) {
        return last;
    }
    last.until_s = 0;
    const std::string file_system = file_system_of(fd);
    last.name(file_system);
    const bool cached = keeps_page_cache(file_system);
    last.passes_small = cached || file_system == "tmpfs";
    last.keeps_page_cache = cached;
    last.disk = disk_of(number);
    last.number = number;
    last.until_s = now.tv_sec + kForSeconds;
    return last;
}

constexpr std::uint64_t kAskedBytesMax = 4 * base::kMiB + 64 * base::kKiB;  // with a header

// Pages of files on overlayfs are those of the files below.
bool is_all_cached(int fd, std::uint64_t bytes, const KnownDevice& device) {
    CachedPages found;
    return bytes <= kAskedBytesMax && device.keeps_page_cache &&
           std::string_view(device.file_system.data()) != "overlay" &&
           cachestat(fd, 0, bytes, found) == 0 &&
           found.pages >= base::align_up(bytes, base::kPageBytes) / base::kPageBytes;
}

// Null where it has to be opened in full. What was named is of another file if the name changed
// meanwhile: then the size decided wrongly about the way, and nothing else.
std::shared_ptr<File> finish_small(const std::string& path, const FileOptions& options,
                                   Opened& opened, std::uint64_t small_bytes) {
    const bool reads = options.access == Access::kRead;
    struct stat status = opened.named;
    if (opened.created && ::fstat(opened.fd.get(), &status) != 0) {
        return nullptr;
    }
    const auto bytes = static_cast<std::uint64_t>(status.st_size);
    if (!S_ISREG(status.st_mode) ||
        (reads ? bytes > std::max(small_bytes, kAskedBytesMax)
               : options.cache != CachePolicy::kCached || options.truncate || options.append)) {
        return nullptr;
    }
    const KnownDevice& device = known_device(status.st_dev, opened.fd.get());
    if (reads && (!device.passes_small ||
                  (bytes > small_bytes && !is_all_cached(opened.fd.get(), bytes, device)))) {
        return nullptr;
    }
    FileInfo info;
    info.path = path;
    info.access = options.access;
    info.cache = options.cache;
    info.device = device.disk;
    info.file_system = device.file_system.data();
    info.in_user_space = is_in_user_space(info.file_system);
    info.created = opened.created;
    info.small = reads;
    info.asks_cache = reads && device.keeps_page_cache;
    info.geometry.reason =
        reads ? "a small or a cached file, read once" : "a few bytes, written once";
    auto file = std::make_shared<LocalFile>(std::move(info), std::move(opened.fd), UniqueFd());
    file->note_size(bytes);
    return file;
}

}  // namespace

base::Error not_direct(const char* operation, const FileInfo& info) {
    return base::error(
        ErrorCode::kUnsupported, operation,
        fmt::format(
            "direct I/O was required, and this file has none: {}; use a file on ext4, XFS or a "
            "block device, or cache=\"direct\" (C++: CachePolicy::kDirect)",
            info.geometry.reason),
        info.path);
}

Result<std::shared_ptr<File>> open_local_file(const std::string& path, const FileOptions& options,
                                              std::uint64_t small_bytes) {
    PENSTOCK_CHECK(check_path("open", path));
    if (options.access == Access::kRead && (options.truncate || options.create)) {
        return fail(base::error(ErrorCode::kInvalidArgument, "open",
                                "create and truncate need write access; open for writing", path));
    }
    PENSTOCK_TRY(opened, open_named(path, options));
    PENSTOCK_ASSERT(opened.fd.get() > STDERR_FILENO);
    auto file = base::as_result("open", [&]() -> Result<std::shared_ptr<File>> {
        if (small_bytes != 0) {
            if (auto small = finish_small(path, options, opened, small_bytes)) {
                return small;
            }
        }
        return finish(path, options, std::move(opened.fd), opened.created);
    });
    if (!file && opened.created) {
        ::unlink(path.c_str());
    }
    return file;
}

}  // namespace penstock::os
