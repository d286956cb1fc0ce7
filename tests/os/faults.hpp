// SPDX-License-Identifier: Apache-2.0
// System calls of the file layer with a fault put in. faults.cpp defines fsync, fdatasync,
// fallocate and close for this program in the C library's place; each does what it is for unless a
// fault waits.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace penstock::os::testing {

struct Faults {
    int fdatasync_errno = 0;
    int fsync_errno = 0;
    int fallocate_errno = 0;
    int close_errno = 0;   ///< the descriptor is closed all the same, as by the kernel
    int direct_errno = 0;  ///< of each open() with O_DIRECT
    long f_bsize = 0;      ///< what fstatfs() tells
    int folder_eintr = 0;  ///< so many openings of folders are interrupted
    int eintr_first = 0;   ///< so many calls are interrupted before anything else happens
};

struct SyncCall {
    std::string call;
    ino_t inode = 0;
};

extern Faults faults;
extern std::vector<SyncCall> sync_calls;

/// No fault, no record: at the start of a test.
void reset_faults();

}  // namespace penstock::os::testing
