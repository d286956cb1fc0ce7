// SPDX-License-Identifier: Apache-2.0
// One io_uring instance: the set-up ladder, and the one system call that submits and waits.
//
// The call is made here and not by liburing's io_uring_submit_and_wait_timeout(), which may enter
// the kernel twice and does not tell how much was submitted when that is less than everything.
#pragma once

#include "base/clock.hpp"
#include "base/result.hpp"
#include "engine/uring/rungs.hpp"

#include <liburing.h>

#include <cstdint>
#include <string>

namespace penstock::engine {

class Ring {
public:
    Ring() = default;
    ~Ring();
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    /// Room for `entries` submissions between two calls of enter(), and twice that in completions,
    /// so that the completion queue never overflows.
    [[nodiscard]] base::Result<void> open(std::uint32_t entries, UringRungs rungs);

    /// The next free entry, or null when the submission queue is full.
    [[nodiscard]] io_uring_sqe* next_entry() { return io_uring_get_sqe(&ring_); }
    /// Entries that the kernel has not taken yet.
    [[nodiscard]] unsigned unsubmitted() const { return io_uring_sq_ready(&ring_); }
    /// Must the kernel be entered for finished work to show?
    [[nodiscard]] bool has_task_work() const;

    /// Submits everything and waits for `min_complete` completions, at most `timeout`. Returns how
    /// many were submitted, or -errno (nothing was submitted then).
    [[nodiscard]] int enter(unsigned min_complete, base::Nanos timeout);

    /// Calls done(user_data, result) for each completion and frees their entries.
    template <typename Done>
    void harvest(Done done) {
        unsigned head = 0;
        unsigned count = 0;
        io_uring_cqe* cqe = nullptr;
        io_uring_for_each_cqe(&ring_, head, cqe) {
            done(cqe->user_data, cqe->res);
            ++count;
        }
        io_uring_cq_advance(&ring_, count);
    }

    /// Takes back what the kernel has not taken: calls back(user_data) for each entry.
    template <typename Back>
    void take_back(Back back) {
        io_uring_sq& queue = ring_.sq;
        const unsigned taken = *queue.khead;
        for (unsigned i = taken; i != queue.sqe_tail; ++i) {
            back(queue.sqes[i & queue.ring_mask].user_data);
        }
        queue.sqe_head = queue.sqe_tail = taken;
        *queue.ktail = taken;
    }

    /// Room for pieces of memory, kMemoryNumbers of them; 0 or an errno, as the next one.
    [[nodiscard]] int make_memory_table();
    /// Gives memory to the ring under this number; nullptr: takes it back. Requests that are out
    /// keep what they have.
    [[nodiscard]] int register_memory(int number, void* data, std::uint64_t bytes);
    static constexpr std::uint32_t kMemoryNumbers = 64;

    /// In the child of a fork: closes the descriptor. The memory is not mapped there, and its
    /// addresses may be in other use by now.
    void abandon();

    [[nodiscard]] std::string detail() const;

private:
    void flush();

    io_uring ring_{};
    bool open_ = false;
};

}  // namespace penstock::engine
