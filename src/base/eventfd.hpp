// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>

namespace penstock::base {

/// Whether the descriptor is an eventfd, for callers who write 8 bytes into it. An eventfd has no
/// file type, and is the only such descriptor that accepts a number; a 0 changes nothing.
inline bool is_eventfd(int fd) {
    struct stat status {};
    const std::uint64_t nothing = 0;
    return ::fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == 0 &&
           ::write(fd, &nothing, sizeof nothing) == sizeof nothing;
}

}  // namespace penstock::base
