// SPDX-License-Identifier: Apache-2.0
#include "os/io_uring_access.hpp"

#include "os/machine/limits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace penstock::os {
namespace {

using ::testing::HasSubstr;

IoUringFacts facts(int sysctl, int seccomp, const char* kernel = "6.1.0-18-amd64") {
    IoUringFacts made;
    made.sysctl_disabled = sysctl;
    made.seccomp_mode = seccomp;
    made.memlock_bytes = 8 << 20;
    made.kernel_release = kernel;
    return made;
}

TEST(IoUringAccess, EachRefusalHasItsReasonAndItsCure) {
    struct Case {
        int error;
        IoUringFacts facts;
        const char* reason;
        const char* cure;
    };
    const Case cases[] = {
        {EPERM, facts(2, 0), "kernel.io_uring_disabled=2", "sysctl -w kernel.io_uring_disabled=0"},
        {EPERM, facts(2, 2), "kernel.io_uring_disabled=2", "sysctl -w"},
        {EPERM, facts(1, 0), "kernel.io_uring_disabled=1", "io_uring_group"},
        {EPERM, facts(0, 2), "seccomp", "--security-opt seccomp="},
        {EPERM, facts(-1, 2), "seccomp", "--security-opt seccomp="},
        {EPERM, facts(0, 0), "security module", "audit log"},
        {EACCES, facts(0, 0), "security module", "SELinux"},
        {ENOSYS, facts(-1, 0, "4.4.0"), "4.4.0 is too old", "5.15"},
        {ENOSYS, facts(0, 2), "seccomp", "--security-opt seccomp="},
        {ENOSYS, facts(-1, 0), "no io_uring", "CONFIG_IO_URING"},
        {ENOMEM, facts(0, 0, "5.10.0"), "8 MiB", "ulimit -l unlimited"},
        {EINVAL, facts(0, 0, "5.4.0"), "5.4.0 does not know", "5.15"},
        {EMFILE, facts(0, 0), "descriptor", "ulimit -n"},
        {ENXIO, facts(0, 0), "errno 6", ""},
    };
    for (const Case& c : cases) {
        const IoUringAccess access = explain_io_uring_errno(c.error, c.facts);
        EXPECT_FALSE(access.allowed);
        EXPECT_THAT(access.reason, HasSubstr(c.reason)) << c.error;
        EXPECT_THAT(access.cure, HasSubstr(c.cure)) << c.error;
    }
    EXPECT_TRUE(explain_io_uring_errno(0, facts(0, 0)).allowed);
}

// A child whose seccomp filter answers io_uring_setup as Docker's does.
std::string probe_under_seccomp(int error) {
    int out[2];
    if (::pipe(out) != 0) {
        return "pipe";
    }
    const pid_t child = ::fork();
    if (child == 0) {
        sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const sock_fprog program{sizeof code / sizeof code[0], code};
        ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        std::string said = "no filter";
        if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0) {
            const IoUringAccess access = probe_io_uring();
            said = (access.allowed ? "allowed: " : "refused: ") + access.reason;
        }
        ::_exit(::write(out[1], said.data(), said.size()) > 0 ? 0 : 1);
    }
    ::close(out[1]);
    std::string said(4096, '\0');
    const ssize_t length = ::read(out[0], said.data(), said.size());
    said.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    ::close(out[0]);
    ::waitpid(child, nullptr, 0);
    return said;
}

TEST(IoUringAccess, SeccompIsFoundOut) {
    if (io_uring_facts().sysctl_disabled > 0) {
        GTEST_SKIP() << "the sysctl forbids io_uring here already";
    }
    EXPECT_THAT(probe_under_seccomp(EPERM), HasSubstr("refused: seccomp filter"));
    EXPECT_THAT(probe_under_seccomp(ENOSYS), HasSubstr("refused: seccomp filter"));
}

TEST(IoUringAccess, ProbeAgreesWithTheKernel) {
    alignas(8) unsigned char params[120] = {};
    const long fd = ::syscall(SYS_io_uring_setup, 1, params);
    const IoUringAccess access = probe_io_uring();
    EXPECT_EQ(access.allowed, fd >= 0) << access.reason;
    EXPECT_FALSE(access.reason.empty());
    if (fd >= 0) {
        ::close(static_cast<int>(fd));
    }
}

}  // namespace
}  // namespace penstock::os
