// SPDX-License-Identifier: Apache-2.0
#include "os/faults.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

namespace penstock::os::testing {

Faults faults;
std::vector<SyncCall> sync_calls;

void reset_faults() {
    faults = Faults{};
    sync_calls.clear();
}

namespace {

int record(const char* call, int fd, int fault) {
    struct stat status {};
    ::fstat(fd, &status);
    if (faults.eintr_first > 0) {
        --faults.eintr_first;
        errno = EINTR;
        return -1;
    }
    sync_calls.push_back({call, status.st_ino});
    errno = fault;
    return fault == 0 ? 0 : -1;
}

}  // namespace

}  // namespace penstock::os::testing

using penstock::os::testing::faults;

extern "C" {

int fdatasync(int fd) {
    const int fault = penstock::os::testing::record("fdatasync", fd, faults.fdatasync_errno);
    return fault != 0 ? fault : static_cast<int>(::syscall(SYS_fdatasync, fd));
}

int fsync(int fd) {
    const int fault = penstock::os::testing::record("fsync", fd, faults.fsync_errno);
    return fault != 0 ? fault : static_cast<int>(::syscall(SYS_fsync, fd));
}

int syncfs(int fd) {
    const int fault = penstock::os::testing::record("syncfs", fd, 0);
    return fault != 0 ? fault : static_cast<int>(::syscall(SYS_syncfs, fd));
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    if (faults.eintr_first > 0) {
        --faults.eintr_first;
        errno = EINTR;
        return -1;
    }
    if (faults.fallocate_errno != 0) {
        errno = faults.fallocate_errno;
        return -1;
    }
    return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, bytes));
}

int open(const char* path, int flags, ...) {
    mode_t mode = 0;
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    if ((flags & O_DIRECT) != 0 && faults.direct_errno != 0) {
        errno = faults.direct_errno;
        return -1;
    }
    return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int openat(int folder, const char* path, int flags, ...) {
    mode_t mode = 0;
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    if ((flags & O_DIRECTORY) != 0 && faults.folder_eintr > 0) {
        --faults.folder_eintr;
        errno = EINTR;
        return -1;
    }
    return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

int fstatfs(int fd, struct statfs* status) {
    const int result = static_cast<int>(::syscall(SYS_fstatfs, fd, status));
    if (faults.f_bsize != 0) {
        status->f_bsize = faults.f_bsize;
    }
    return result;
}

int close(int fd) {
    const int result = static_cast<int>(::syscall(SYS_close, fd));
    if (faults.close_errno != 0) {
        errno = faults.close_errno;
        return -1;
    }
    return result;
}

}  // extern "C"
