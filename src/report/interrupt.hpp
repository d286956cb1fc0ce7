// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and similar signals while a command runs. The handler removes the scratch files' names at
// once, so that they are gone whatever happens next, and sets a flag; the command checks the flag
// at least ten times a second and ends in good order. A second signal ends the process immediately.
#pragma once

#include <array>
#include <csignal>
#include <cstddef>
#include <string>

namespace penstock::report {

/// Thrown by check_interrupt().
struct Interrupted {
    int signal = 0;
};

/// While one of these lives, SIGINT, SIGTERM, SIGHUP and SIGPIPE are recorded instead of obeyed;
/// the signal of a limit on the size of files (SIGXFSZ) is ignored, so that the write fails and its
/// error is reported. One at a time in a process.
class InterruptGuard {
public:
    InterruptGuard();
    ~InterruptGuard();
    InterruptGuard(const InterruptGuard&) = delete;
    InterruptGuard& operator=(const InterruptGuard&) = delete;

private:
    static constexpr std::size_t kSignals = 5;
    std::array<struct sigaction, kSignals> before_{};
};

/// Throws Interrupted when a signal has come.
void check_interrupt();

/// "Ctrl-C (SIGINT)"
[[nodiscard]] std::string signal_name(int signal);

/// A file that a signal removes. kRemovedMax at a time in a process.
class RemovedBySignal {
public:
    static constexpr std::size_t kRemovedMax = 64;

    explicit RemovedBySignal(std::string path);
    /// Also removes the file.
    ~RemovedBySignal();
    RemovedBySignal(const RemovedBySignal&) = delete;
    RemovedBySignal& operator=(const RemovedBySignal&) = delete;

private:
    std::string path_;
    std::size_t slot_ = kRemovedMax;
};

}  // namespace penstock::report
