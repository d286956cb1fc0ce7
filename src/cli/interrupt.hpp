// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and its kin while a command runs. The handler takes the scratch files' names away at once,
// so that they are gone whatever happens next, and leaves a note; whoever works looks at the note
// at least ten times a second and ends in good order. A second signal ends the process on the spot.
#pragma once

#include <array>
#include <csignal>
#include <cstddef>
#include <string>

namespace penstock::cli {

/// Thrown by check_interrupt().
struct Interrupted {
    int signal = 0;
};

/// SIGINT, SIGTERM, SIGHUP and SIGPIPE are noted instead of obeyed while one of these lives; the
/// signal of a limit on the size of files (SIGXFSZ) is passed over, so that the write fails and its
/// error is told. One at a time in a process.
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
    /// Removes it as well.
    ~RemovedBySignal();
    RemovedBySignal(const RemovedBySignal&) = delete;
    RemovedBySignal& operator=(const RemovedBySignal&) = delete;

private:
    std::string path_;
    std::size_t slot_ = kRemovedMax;
};

}  // namespace penstock::cli
