// SPDX-License-Identifier: Apache-2.0
#include "os/io_uring_access.hpp"

#include "base/text/units.hpp"
#include "os/machine/limits.hpp"
#include "os/machine/sysfs.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>

namespace penstock::os {

namespace {

constexpr const char* kSeccompCure =
    "run the container with a seccomp profile that allows io_uring_setup, io_uring_enter and "
    "io_uring_register (docker run --security-opt seccomp=PROFILE.json, or seccomp=unconfined)";

IoUringAccess refused_by_permission(const IoUringFacts& facts) {
    if (facts.sysctl_disabled == 2) {
        return {false, "sysctl kernel.io_uring_disabled=2: nobody may use io_uring",
                "sysctl -w kernel.io_uring_disabled=0"};
    }
    if (facts.sysctl_disabled == 1 && facts.seccomp_mode != 2) {
        return {false,
                "sysctl kernel.io_uring_disabled=1: only root and one group may use io_uring",
                "sysctl -w kernel.io_uring_disabled=0, or join the group of kernel.io_uring_group"};
    }
    if (facts.seccomp_mode == 2) {
        return {false, "seccomp filter of this process (EPERM), as in Docker's default profile",
                kSeccompCure};
    }
    return {false,
            "EPERM, and neither sysctl nor seccomp explains it: a security module (SELinux, "
            "AppArmor, BPF)?",
            "look at the kernel log and the audit log for io_uring"};
}

IoUringAccess no_such_call(const IoUringFacts& facts) {
    if (!release_at_least(facts.kernel_release, 5, 1)) {
        return {false,
                fmt::format("kernel {} is too old: io_uring came with 5.1", facts.kernel_release),
                "boot kernel 5.15 or newer (gVisor has no io_uring)"};
    }
    if (facts.seccomp_mode == 2) {
        return {false, "seccomp filter of this process (ENOSYS)", kSeccompCure};
    }
    return {false,
            fmt::format("kernel {} has no io_uring: built without it, or a sandbox",
                        facts.kernel_release),
            "boot a kernel with CONFIG_IO_URING=y"};
}

IoUringAccess no_memory(const IoUringFacts& facts) {
    const std::string limit = facts.memlock_bytes == kUnlimited
                                  ? std::string("unlimited")
                                  : base::format_bytes(facts.memlock_bytes);
    return {false,
            fmt::format(
                "no memory for the ring (ENOMEM); the limit on locked memory is {}, and kernels "
                "before 5.12 count rings in it (this is {})",
                limit, facts.kernel_release),
            fmt::format("raise the limit: {}", kRaiseMemlock)};
}

}  // namespace

IoUringAccess explain_io_uring_errno(int setup_errno, const IoUringFacts& facts) {
    switch (setup_errno) {
        case 0:
            return {true, "io_uring_setup works", ""};
        case EPERM:
            return refused_by_permission(facts);
        case EACCES:
            return {false, "a security module refuses io_uring (EACCES)",
                    "allow io_uring in the policy of SELinux or AppArmor for this program"};
        case ENOSYS:
            return no_such_call(facts);
        case ENOMEM:
            return no_memory(facts);
        case EINVAL:
            return {false,
                    fmt::format("kernel {} does not know what was asked of io_uring_setup (EINVAL)",
                                facts.kernel_release),
                    "boot kernel 5.15 or newer"};
        case EMFILE:
        case ENFILE:
            return {false, "no file descriptor is left for a ring",
                    "raise the limit on open files (ulimit -n)"};
        default:
            return {false,
                    fmt::format("io_uring_setup: {} (errno {})",
                                std::generic_category().message(setup_errno), setup_errno),
                    ""};
    }
}

IoUringFacts io_uring_facts() {
    IoUringFacts facts;
    facts.sysctl_disabled =
        static_cast<int>(read_number("/proc/sys/kernel/io_uring_disabled").value_or(-1));
    facts.seccomp_mode = seccomp_mode();
    facts.memlock_bytes = memlock_limit();
    facts.kernel_release = kernel_release();
    return facts;
}

IoUringAccess explain_io_uring_errno(int setup_errno) {
    return explain_io_uring_errno(setup_errno, io_uring_facts());
}

IoUringAccess probe_io_uring() {
    alignas(8) std::array<std::uint8_t, 120>
        params{};  // struct io_uring_params: all zero asks for nothing
    const long fd = ::syscall(SYS_io_uring_setup, 1, params.data());
    if (fd < 0) {
        return explain_io_uring_errno(errno);
    }
    // Submits nothing, which works unless the call itself is refused.
    const bool entered = ::syscall(SYS_io_uring_enter, fd, 0, 0, 0, nullptr, 0) >= 0;
    const int enter_errno = errno;
    ::close(static_cast<int>(fd));
    if (!entered && enter_errno != EINTR) {
        return {
            false,
            fmt::format("a sandbox that allows io_uring_setup and not io_uring_enter (errno {})",
                        enter_errno),
            "allow io_uring_enter in the seccomp profile"};
    }
    return explain_io_uring_errno(0);
}

}  // namespace penstock::os
