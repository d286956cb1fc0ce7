// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

namespace penstock::cli {

namespace {

constexpr std::array<int, 4> kHandled{SIGINT, SIGTERM, SIGHUP, SIGPIPE};

std::atomic<int> signal_seen{0};
std::atomic<const char*> file_to_remove{nullptr};
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<const char*>::is_always_lock_free);

// Only what a signal handler may do: atomics, unlink, signal, raise.
void on_signal(int signal) {
    const int saved_errno = errno;
    if (const char* path = file_to_remove.exchange(nullptr)) {
        ::unlink(path);
    }
    if (signal_seen.exchange(signal) != 0 && signal != SIGPIPE) {
        ::signal(signal, SIG_DFL);
        ::raise(signal);
    }
    errno = saved_errno;
}

}  // namespace

InterruptGuard::InterruptGuard() {
    signal_seen = 0;
    struct sigaction action {};
    action.sa_handler = on_signal;
    ::sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < kHandled.size(); ++i) {
        ::sigaction(kHandled[i], &action, &before_[i]);
    }
}

InterruptGuard::~InterruptGuard() {
    for (std::size_t i = 0; i < kHandled.size(); ++i) {
        ::sigaction(kHandled[i], &before_[i], nullptr);
    }
}

void check_interrupt() {
    if (const int signal = signal_seen.load(std::memory_order_relaxed); signal != 0) {
        throw Interrupted{signal};
    }
}

std::string signal_name(int signal) {
    switch (signal) {
        case SIGINT:
            return "Ctrl-C (SIGINT)";
        case SIGTERM:
            return "SIGTERM";
        case SIGHUP:
            return "SIGHUP";
        case SIGPIPE:
            return "SIGPIPE (nobody reads the output)";
        default:
            return "signal " + std::to_string(signal);
    }
}

RemovedBySignal::RemovedBySignal(std::string path) : path_(std::move(path)) {
    file_to_remove = path_.c_str();
}

RemovedBySignal::~RemovedBySignal() {
    if (const char* path = file_to_remove.exchange(nullptr)) {
        ::unlink(path);
    }
}

}  // namespace penstock::cli
