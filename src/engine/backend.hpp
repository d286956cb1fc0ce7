// SPDX-License-Identifier: Apache-2.0
// What carries requests to storage. A channel has one; all but wake() is called on the channel's
// thread.
//
//   push ... push, enter (hands them over; may sleep), reap ... reap, push ...
//
// A pushed request is the backend's until reap() gives it back with `result` set to the bytes moved
// (fewer than asked is allowed, 0 = end of file) or -errno. A backend retries nothing and never
// fails as a whole: what the kernel refuses at submission becomes the result of the requests
// concerned.
#pragma once

#include "base/clock.hpp"
#include "engine/request.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::engine {

/// Memory that the kernel was given for good.
struct RegisteredMemoryStatus {
    std::uint64_t bytes = 0;
    std::uint64_t requests = 0;  ///< from and to it, so far
    int refused = 0;             ///< the errno of the kernel, which takes no more
};

struct BackendOptions {
    std::uint32_t depth = 128;  ///< requests between push and reap at most
};

class Backend {
public:
    virtual ~Backend() = default;

    /// "io_uring", "libaio", "posix", "fake".
    [[nodiscard]] virtual const char* name() const = 0;
    /// Flags and rungs in use, for describe().
    [[nodiscard]] virtual std::string detail() const = 0;
    /// May a buffered request be pushed, or would that block the channel's thread? (Direct ones
    /// always.)
    [[nodiscard]] virtual bool takes_buffered() const = 0;
    /// The kernel goes on by itself with what came short (io_uring). On FUSE with direct_io Linux
    /// does that wrongly: it reads the same bytes once more, and counts them as the next ones.
    [[nodiscard]] virtual bool goes_on_by_itself() const { return false; }

    /// Never blocks; room is the caller's care (`depth`).
    virtual void push(Request& request) = 0;

    /// Hands over what was pushed. With `want` > 0, sleeps until `want` requests can be reaped, or
    /// `timeout` nanoseconds have passed, or wake() was called (also before this call: a wake-up is
    /// never lost). Both in one system call where the kernel has one.
    virtual void enter(std::uint32_t want, base::Nanos timeout) = 0;

    /// Takes finished requests off, never sleeps; returns how many.
    virtual std::size_t reap(std::span<Request*> done) = 0;

    /// Any thread: ends a sleep in enter(), now or the next.
    virtual void wake() = 0;

    /// System calls made so far (0 where it makes none). Any thread.
    [[nodiscard]] virtual std::uint64_t system_calls() const { return 0; }

    /// Any thread.
    [[nodiscard]] virtual RegisteredMemoryStatus registered_memory() const { return {}; }

    /// After fork(), in the child: forget descriptors and mappings without touching the parent's
    /// I/O.
    virtual void abandon_after_fork() {}
};

/// Makes a backend on the thread that will use it, or says why it cannot be had here.
using BackendFactory =
    std::function<base::Result<std::unique_ptr<Backend>>(const BackendOptions& options)>;

/// A named backend that the engine may use; it tries them in order.
struct BackendEntry {
    std::string name;
    BackendFactory make;
    /// Hands descriptors to the kernel: not for files that have none.
    bool needs_descriptors = false;
};

}  // namespace penstock::engine
