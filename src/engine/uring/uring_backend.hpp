// SPDX-License-Identifier: Apache-2.0
// io_uring: a turn of the channel costs one system call, which hands over what was pushed and
// sleeps.
//
// Waking: a read of an eventfd waits on the ring, so that wake() ends the one sleep there is. Its
// completion is counted in `woken_` and consumed by the enter() that returns because of it; one
// that shows up in reap() ends the next enter(), so none is lost. The read is armed only before a
// sleep and stays armed: a block costs nothing for it. It counts as one completion, so an enter()
// that waits for several requests with a time limit may sleep on until they are there or it is
// over.
#pragma once

#include "engine/backend.hpp"
#include "engine/finished_queue.hpp"
#include "engine/uring/registered_memory.hpp"
#include "engine/uring/ring.hpp"
#include "engine/wake_event.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace penstock::engine {

class UringBackend final : public Backend {
public:
    UringBackend() = default;
    ~UringBackend() override;
    UringBackend(const UringBackend&) = delete;
    UringBackend& operator=(const UringBackend&) = delete;

    [[nodiscard]] base::Result<void> open(const BackendOptions& options, UringRungs rungs);

    [[nodiscard]] const char* name() const override { return "io_uring"; }
    [[nodiscard]] std::string detail() const override { return ring_.detail(); }
    [[nodiscard]] bool takes_buffered() const override { return true; }
    [[nodiscard]] bool goes_on_by_itself() const override { return true; }
    void push(Request& request) override;
    void enter(std::uint32_t want, base::Nanos timeout) override;
    std::size_t reap(std::span<Request*> done) override;
    void wake() override { wake_event_.wake(); }
    [[nodiscard]] std::uint64_t system_calls() const override {
        return system_calls_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] RegisteredMemoryStatus registered_memory() const override;
    void abandon_after_fork() override;

private:
    [[nodiscard]] std::uint32_t completions_to_wait_for(std::uint32_t want,
                                                        base::Nanos timeout) const;
    void submit_and_wait(std::uint32_t min_complete, base::Nanos timeout);
    void arm_wake();
    void harvest();
    void finish(Request& request, std::int64_t result);
    void refuse_unsubmitted(int error);

    Ring ring_;
    WakeEvent wake_event_;
    std::uint64_t wake_value_ = 0;  // where the armed read puts the eventfd's counter
    RegisteredMemory memory_{ring_, wake_event_};
    FinishedQueue finished_;
    std::uint32_t in_kernel_ = 0;  // pushed and not finished
    std::atomic<std::uint64_t> system_calls_{0};
    std::atomic<std::uint64_t> registered_requests_{0};
};

/// On the thread that will use it.
[[nodiscard]] base::Result<std::unique_ptr<Backend>> make_uring_backend(
    const BackendOptions& options, UringRungs rungs = UringRungs::best());

}  // namespace penstock::engine
