// SPDX-License-Identifier: Apache-2.0
// How another thread ends a sleep in the kernel: an eventfd that the backend has armed a read or a
// poll of, so that the wake-up is one more completion.
//
//     armed      the kernel holds the backend's request on the eventfd
//     requested  the eventfd was written since its last read: further wake-ups are this one
//     woken      a wake-up came that enter() has not answered yet
#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace penstock::engine {

class WakeEvent {
public:
    /// `flags`: of eventfd(2), in addition to close-on-exec.
    [[nodiscard]] base::Result<void> open(int flags) {
        event_.reset(::eventfd(0, EFD_CLOEXEC | flags));
        if (!event_) {
            return base::fail(base::system_error(errno, "eventfd", ""));
        }
        return {};
    }
    [[nodiscard]] bool is_open() const { return static_cast<bool>(event_); }
    [[nodiscard]] int fd() const { return event_.get(); }
    void close() { event_.reset(); }

    /// Any thread.
    void wake() {
        if (requested_.exchange(true, std::memory_order_acq_rel)) {
            return;
        }
        const std::uint64_t one = 1;
        while (::write(event_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
        }
    }

    // The backend's own thread.
    [[nodiscard]] bool armed() const { return armed_; }
    void set_armed(bool armed) { armed_ = armed; }
    [[nodiscard]] bool woken() const { return woken_; }
    void set_woken(bool woken) { woken_ = woken; }
    /// The eventfd was read, before the caller looks for what it was woken for: who comes later
    /// wakes again.
    void arrived() {
        requested_.exchange(false, std::memory_order_acq_rel);
        woken_ = true;
    }

private:
    base::UniqueFd event_;
    std::atomic<bool> requested_{false};
    bool armed_ = false;
    bool woken_ = false;
};

}  // namespace penstock::engine
