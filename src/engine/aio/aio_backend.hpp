// SPDX-License-Identifier: Apache-2.0
// Linux AIO: what runs where io_uring is forbidden (Docker's seccomp profile allows the aio
// family). Direct requests only: a buffered one would do its I/O inside io_submit.
//
// A turn costs io_submit and, when it has to sleep, io_getevents. Waking: a poll of an eventfd
// (IOCB_CMD_POLL) is among the requests, so that the one sleep serves both; it is armed before a
// sleep, together with what is being submitted. The wake-up rules are those of the io_uring
// backend.
//
// A full kernel queue is no result: what io_submit does not take for EAGAIN waits here for the next
// enter(). Any other refusal is the result of the request concerned.
#pragma once

#include "engine/aio/aio_context.hpp"
#include "engine/backend.hpp"
#include "engine/finished_queue.hpp"
#include "engine/wake_event.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock::engine {

class AioBackend final : public Backend {
public:
    AioBackend() = default;
    ~AioBackend() override;
    AioBackend(const AioBackend&) = delete;
    AioBackend& operator=(const AioBackend&) = delete;

    [[nodiscard]] base::Result<void> open(const BackendOptions& options);

    [[nodiscard]] const char* name() const override { return "libaio"; }
    [[nodiscard]] std::string detail() const override;
    [[nodiscard]] bool takes_buffered() const override { return false; }
    void push(Request& request) override;
    void enter(std::uint32_t want, base::Nanos timeout) override;
    std::size_t reap(std::span<Request*> done) override;
    void wake() override { wake_event_.wake(); }
    [[nodiscard]] std::uint64_t system_calls() const override {
        return system_calls_.load(std::memory_order_relaxed);
    }
    void abandon_after_fork() override;

private:
    void submit();
    bool submit_some();
    void sleep(std::uint32_t want, base::Nanos timeout);
    void arm_wake();
    void harvest();
    void take(const io_event& event);
    void count_system_call();

    std::vector<iocb> iocbs_;       // depth of them, and the wake-up's
    std::vector<iocb*> free_;       // a stack
    std::vector<iocb*> pending_;    // pushed, not submitted
    std::vector<io_event> events_;  // where events arrive
    AioContext context_;            // ends before the memory that its events point to
    std::uint32_t depth_ = 0;

    WakeEvent wake_event_;
    FinishedQueue finished_;
    std::uint32_t in_kernel_ = 0;  // submitted requests, without the wake-up
    std::atomic<std::uint64_t> system_calls_{0};
};

/// On the thread that will use it.
[[nodiscard]] base::Result<std::unique_ptr<Backend>> make_aio_backend(
    const BackendOptions& options);

}  // namespace penstock::engine
