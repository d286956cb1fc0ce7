// SPDX-License-Identifier: Apache-2.0
#include "os/statx.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace penstock::os {

int statx_of(int fd, std::uint32_t mask, Statx& out, bool dont_sync) {
    out = Statx{};
    const int flags = AT_EMPTY_PATH | (dont_sync ? AT_STATX_DONT_SYNC : 0);
    return ::syscall(SYS_statx, fd, "", flags, mask, &out) == 0 ? 0 : errno;
}

}  // namespace penstock::os
