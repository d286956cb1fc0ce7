// SPDX-License-Identifier: Apache-2.0
// A system call that is refused, in a child of its own: what a container's profile or an old kernel
// does.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace penstock::test {

/// From here on this process gets `system_errno` for the system call `number`; with `argument` >= 0
/// only when its second argument has that value. False when seccomp itself is not to be had.
inline bool refuse_system_call(long number, int system_errno, int second_argument = -1) {
    const auto allow = sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const auto refuse = sock_filter BPF_STMT(
        BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(system_errno));
    constexpr unsigned kNumberAt = 0;
    constexpr unsigned kSecondAt = 16 + 8;  // low half of seccomp_data.args[1]
    std::array<sock_filter, 6> code{};
    unsigned short count = 0;
    code[count++] = sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumberAt);
    if (second_argument >= 0) {
        code[count++] =
            sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 3);
        code[count++] = sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSecondAt);
        code[count++] = sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                             static_cast<unsigned>(second_argument), 0, 1);
    } else {
        code[count++] =
            sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1);
    }
    code[count++] = refuse;
    code[count++] = allow;
    const sock_fprog program{count, code.data()};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// Runs `body` in a child and returns the text that it gives back, or what became of the child.
inline std::string in_child(const std::function<std::string()>& body) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) {
        return "no pipe";
    }
    const pid_t child = ::fork();
    if (child == 0) {
        ::close(ends[0]);
        const std::string text = body();
        const ssize_t put = ::write(ends[1], text.data(), text.size());
        ::_exit(put == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    std::string text;
    std::array<char, 4096> buffer{};
    for (ssize_t got = 0; (got = ::read(ends[0], buffer.data(), buffer.size())) > 0;) {
        text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    ::close(ends[0]);
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
        WEXITSTATUS(status) != 0) {
        return "the child ended with status " + std::to_string(status) + " after: " + text;
    }
    return text;
}

}  // namespace penstock::test
