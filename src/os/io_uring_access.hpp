// SPDX-License-Identifier: Apache-2.0
// Whether this process may use io_uring, and if not, what forbids it and what mends that.
#pragma once

#include <string>

namespace penstock::os {

struct IoUringAccess {
    bool allowed = false;
    std::string reason;  ///< "sysctl kernel.io_uring_disabled=2", "seccomp (EPERM)", "kernel too old", ...
    std::string cure;    ///< the command or setting that mends it, or empty
};

/// Explains an errno of io_uring_setup (EPERM, ENOSYS, ENOMEM, EINVAL ...) with the sysctl, seccomp
/// mode of this process, RLIMIT_MEMLOCK and kernel release at hand.
[[nodiscard]] IoUringAccess explain_io_uring_errno(int setup_errno);

/// Tries io_uring_setup with one entry and says what came.
[[nodiscard]] IoUringAccess probe_io_uring();

}  // namespace penstock::os
