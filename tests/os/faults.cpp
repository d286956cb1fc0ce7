// SPDX-License-Identifier: Apache-2.0
#include "os/faults.hpp"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

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

int close(int fd) {
    const int result = static_cast<int>(::syscall(SYS_close, fd));
    if (faults.close_errno != 0) {
        errno = faults.close_errno;
        return -1;
    }
    return result;
}

}  // extern "C"
