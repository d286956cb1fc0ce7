// SPDX-License-Identifier: Apache-2.0
#include "os/statx.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace penstock::os {

int statx_of(int fd, std::uint32_t mask, Statx& out) {
    out = Statx{};
    return ::syscall(SYS_statx, fd, "", AT_EMPTY_PATH, mask, &out) == 0 ? 0 : errno;
}

}  // namespace penstock::os
