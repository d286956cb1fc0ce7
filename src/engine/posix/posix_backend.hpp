// SPDX-License-Identifier: Apache-2.0
// Blocking calls of os::File on a pool of threads: works wherever files do, and on files that are
// not the kernel's.
//
// enter() hands what was pushed to the pool in one go; a worker puts what it has finished into an
// inbox and counts it. enter() sleeps on `events_`: it announces in `wake_at_` how many must have
// been finished, and only the worker that reaches it (or wake()) bumps the word and enters the
// kernel. Both sides write theirs before they read the other's, all sequentially consistent, so one
// sees it.
#pragma once

#include "base/intrusive.hpp"
#include "engine/backend.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace penstock::engine {

class WorkerPool;

struct PosixOptions {
    std::uint32_t threads_max = 16;  ///< made as load comes; never more than the queue depth
};

class PosixBackend final : public Backend {
public:
    PosixBackend(const BackendOptions& options, const PosixOptions& posix);
    ~PosixBackend() override;
    PosixBackend(const PosixBackend&) = delete;
    PosixBackend& operator=(const PosixBackend&) = delete;

    [[nodiscard]] const char* name() const override { return "posix"; }
    [[nodiscard]] std::string detail() const override;
    [[nodiscard]] bool takes_buffered() const override { return true; }
    void push(Request& request) override;
    void enter(std::uint32_t want, base::Nanos timeout) override;
    std::size_t reap(std::span<Request*> done) override;
    void wake() override;
    /// Reads and writes; futex calls are not counted.
    [[nodiscard]] std::uint64_t system_calls() const override;
    void abandon_after_fork() override;

    /// How many threads there are by now.
    [[nodiscard]] std::uint32_t threads() const;

private:
    std::unique_ptr<WorkerPool> pool_;
    base::Fifo<Request> pushed_;
    std::uint32_t pushed_count_ = 0;
    base::Fifo<Request> finished_;
    std::uint32_t reaped_ = 0;  // in all, as the pool's count: both wrap
};

/// On any thread.
[[nodiscard]] base::Result<std::unique_ptr<Backend>> make_posix_backend(
    const BackendOptions& options, const PosixOptions& posix = {});

}  // namespace penstock::engine
