// SPDX-License-Identifier: Apache-2.0
#include "report/interrupt.hpp"

#include "base/assert.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

namespace penstock::report {

namespace {

constexpr std::array<int, 5> kHandled{SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ};

std::atomic<int> signal_seen{0};
std::array<std::atomic<const char*>, RemovedBySignal::kRemovedMax> files_to_remove{};
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<const char*>::is_always_lock_free);

// Uses only calls that a signal handler may make: atomics, unlink, signal, raise.
void on_signal(int signal) {
    if (signal == SIGXFSZ) {
        return;
    }
    const int saved_errno = errno;
    for (auto& file : files_to_remove) {
        if (const char* path = file.exchange(nullptr)) {
            ::unlink(path);
        }
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
    for (slot_ = 0; slot_ < kRemovedMax; ++slot_) {
        const char* none = nullptr;
        if (files_to_remove[slot_].compare_exchange_strong(none, path_.c_str())) {
            return;
        }
    }
    PENSTOCK_ASSERT(slot_ < kRemovedMax);
}

RemovedBySignal::~RemovedBySignal() {
    if (const char* path = files_to_remove[slot_].exchange(nullptr)) {
        ::unlink(path);
    }
}

}  // namespace penstock::report
