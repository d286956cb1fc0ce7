// SPDX-License-Identifier: Apache-2.0
// Whether this process may use io_uring, and if not, what forbids it and how to fix that.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::os {

struct IoUringAccess {
    bool allowed = false;
    std::string
        reason;  ///< "sysctl kernel.io_uring_disabled=2", "seccomp (EPERM)", "kernel too old", ...
    std::string cure;  ///< the command or setting that fixes it, or empty
};

/// Explains an errno of io_uring_setup (EPERM, ENOSYS, ENOMEM, EINVAL ...) with the sysctl, seccomp
/// mode of this process, RLIMIT_MEMLOCK and kernel release at hand.
[[nodiscard]] IoUringAccess explain_io_uring_errno(int setup_errno);

/// The settings that decide about io_uring on this machine.
struct IoUringFacts {
    int sysctl_disabled =
        -1;  ///< kernel.io_uring_disabled: 0, 1, 2; -1 if it does not exist (before 6.6)
    int seccomp_mode = 0;                             ///< of this process; 2 = filter
    std::uint64_t memlock_bytes = ~std::uint64_t{0};  ///< soft limit; all ones = unlimited
    std::string kernel_release;
};
[[nodiscard]] IoUringFacts io_uring_facts();

/// Explains an errno from the given facts.
[[nodiscard]] IoUringAccess explain_io_uring_errno(int setup_errno, const IoUringFacts& facts);

/// Tries io_uring_setup with one entry and reports the result.
[[nodiscard]] IoUringAccess probe_io_uring();

}  // namespace penstock::os
