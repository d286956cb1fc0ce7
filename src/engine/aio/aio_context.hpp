// SPDX-License-Identifier: Apache-2.0
// The kernel's AIO by its own system calls (libaio is a thin shell around these four).
//
// The context's address is that of a ring which the kernel maps into this process and fills with
// events. Who reads it there saves a system call whenever something is finished already; kernels
// allow that (it is what fio and libaio do) as long as one thread does it. Where the ring is not
// the known one (a sandbox that plays kernel), events come by io_getevents alone.
#pragma once

#include "base/clock.hpp"
#include "base/result.hpp"

#include <linux/aio_abi.h>

#include <cstdint>
#include <span>

namespace penstock::engine {

class AioContext {
public:
    AioContext() = default;
    ~AioContext();
    AioContext(const AioContext&) = delete;
    AioContext& operator=(const AioContext&) = delete;

    [[nodiscard]] base::Result<void> open(std::uint32_t entries);

    /// How many of the first were taken, or -errno of the first.
    [[nodiscard]] long submit(std::span<iocb*> requests);
    /// Sleeps until `min_events` are there or `timeout` is over; how many came, or -errno.
    [[nodiscard]] long wait(std::uint32_t min_events, std::span<io_event> events,
                            base::Nanos timeout);
    /// Completions that are finished already, without a system call; 0 also if that is unknown.
    [[nodiscard]] std::size_t peek(std::span<io_event> events);
    [[nodiscard]] bool can_peek() const { return ring_ != nullptr; }

    /// In the child of a fork the context does not exist; forgets it.
    void abandon();

private:
    struct EventRing;

    aio_context_t id_ = 0;
    EventRing* ring_ = nullptr;
};

}  // namespace penstock::engine
