// SPDX-License-Identifier: Apache-2.0
#include "engine/uring/uring_backend.hpp"

#include "base/assert.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace penstock::engine {

namespace {

// No request has this address.
constexpr std::uint64_t kWakeTag = 0;
// Two completions for each of depth + 1 submissions fit into the kernel's largest ring.
constexpr std::uint32_t kDepthMax = 16384;
// Longer ones are cut by the kernel; its argument is 32 bits wide, so cut them before it does.
constexpr std::size_t kRequestBytesMax = 0x7ffff000;
// Time for which a thread yields its core if the kernel refuses to let it sleep.
constexpr std::chrono::milliseconds kRefusedSleep{1};

}  // namespace

base::Result<void> UringBackend::open(const BackendOptions& options, UringRungs rungs) {
    if (options.depth == 0 || options.depth > kDepthMax) {
        return base::fail(base::error(
            ErrorCode::kInvalidArgument, "io_uring_setup",
            fmt::format("queue depth {} was asked for; choose 1 to {}", options.depth, kDepthMax)));
    }
    PENSTOCK_CHECK(ring_.open(options.depth + 1, rungs));
    // Blocking: io_uring answers a read of a non-blocking descriptor with EAGAIN instead of
    // waiting.
    PENSTOCK_CHECK(wake_event_.open(0));
    memory_.open();
    return {};
}

UringBackend::~UringBackend() {
    if (!wake_event_.is_open()) {
        return;
    }
    // The kernel writes into memory of the requests and of this object until all have come back.
    while (in_kernel_ > 0) {
        enter(finished_.size() + 1, base::kForever);
    }
    constexpr base::Nanos kSlice = 10'000'000;
    wake_event_.wake();
    for (int tries = 0; wake_event_.armed() && tries < 100; ++tries) {
        submit_and_wait(1, kSlice);
        harvest();
    }
}

void UringBackend::push(Request& request) {
    io_uring_sqe* entry = ring_.next_entry();
    PENSTOCK_ASSERT(entry != nullptr);  // more than `depth` were pushed
    const int fd = request.file->descriptor(request.io);
    const bool read = request.op == Op::kRead;
    if (request.pieces.size() == 1) {
        const iovec& piece = request.pieces.front();
        const auto bytes = static_cast<unsigned>(std::min(piece.iov_len, kRequestBytesMax));
        if (read) {
            io_uring_prep_read(entry, fd, piece.iov_base, bytes, request.offset);
        } else {
            io_uring_prep_write(entry, fd, piece.iov_base, bytes, request.offset);
        }
        const int number = memory_.number_of(piece.iov_base, bytes);
        if (number != RegisteredMemory::kNone) {
            entry->opcode = read ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED;
            entry->buf_index = static_cast<std::uint16_t>(number);
            registered_requests_.store(registered_requests_.load(std::memory_order_relaxed) + 1,
                                       std::memory_order_relaxed);
        }
    } else {
        const auto count = static_cast<unsigned>(request.pieces.size());
        if (read) {
            io_uring_prep_readv(entry, fd, request.pieces.data(), count, request.offset);
        } else {
            io_uring_prep_writev(entry, fd, request.pieces.data(), count, request.offset);
        }
    }
    entry->user_data = reinterpret_cast<std::uint64_t>(&request);
    ++in_kernel_;
}

void UringBackend::enter(std::uint32_t want, base::Nanos timeout) {
    memory_.let_go_of_removed();
    harvest();
    for (;;) {
        const bool sleep = finished_.size() < want && timeout > 0 && !wake_event_.woken();
        if (sleep && !wake_event_.armed()) {
            arm_wake();
        }
        submit_and_wait(sleep ? completions_to_wait_for(want, timeout) : 0, timeout);
        harvest();
        // A signal may end a sleep early. One that has a limit simply ends; one that has none goes
        // on.
        if (!sleep || wake_event_.woken() || finished_.size() >= want ||
            timeout != base::kForever) {
            break;
        }
    }
    if (want > 0) {
        wake_event_.set_woken(false);
    }
}

// A wake-up is one completion, and must not have to wait for others where no limit ends the sleep.
std::uint32_t UringBackend::completions_to_wait_for(std::uint32_t want, base::Nanos timeout) const {
    return timeout == base::kForever ? 1 : want - finished_.size();
}

// One system call, unless the kernel took only part of what there was.
void UringBackend::submit_and_wait(std::uint32_t min_complete, base::Nanos timeout) {
    for (;;) {
        const unsigned to_submit = ring_.unsubmitted();
        if (to_submit == 0 && min_complete == 0 && !ring_.has_task_work()) {
            return;
        }
        system_calls_.store(system_calls_.load(std::memory_order_relaxed) + 1,
                            std::memory_order_relaxed);
        const int submitted = ring_.enter(min_complete, timeout);
        if (submitted == -EINTR || submitted == -ETIME) {
            return;
        }
        if (submitted < 0 || (submitted == 0 && to_submit > 0)) {
            refuse_unsubmitted(submitted < 0 ? -submitted : EAGAIN);
            return;
        }
        if (static_cast<unsigned>(submitted) >= to_submit) {
            return;
        }
    }
}

void UringBackend::refuse_unsubmitted(int error) {
    ring_.take_back([&](std::uint64_t tag) {
        if (tag == kWakeTag) {
            wake_event_.set_armed(false);
            // A sleep could not be ended now: it is a short one.
            wake_event_.set_woken(true);
            std::this_thread::sleep_for(kRefusedSleep);
        } else {
            finish(*reinterpret_cast<Request*>(tag), -error);
        }
    });
}

std::size_t UringBackend::reap(std::span<Request*> done) {
    if (finished_.size() < done.size()) {
        harvest();
    }
    return finished_.take(done);
}

void UringBackend::harvest() {
    ring_.harvest([this](std::uint64_t tag, int result) {
        if (tag != kWakeTag) {
            finish(*reinterpret_cast<Request*>(tag), result);
            return;
        }
        wake_event_.set_armed(false);
        if (result > 0) {
            wake_event_.arrived();
        }
    });
}

void UringBackend::finish(Request& request, std::int64_t result) {
    finished_.push(request, result);
    --in_kernel_;
}

void UringBackend::arm_wake() {
    io_uring_sqe* entry = ring_.next_entry();
    PENSTOCK_ASSERT(entry != nullptr);
    io_uring_prep_read(entry, wake_event_.fd(), &wake_value_, sizeof(wake_value_), 0);
    entry->user_data = kWakeTag;
    wake_event_.set_armed(true);
}

RegisteredMemoryStatus UringBackend::registered_memory() const {
    return {memory_.bytes(), registered_requests_.load(std::memory_order_relaxed),
            memory_.refused()};
}

void UringBackend::abandon_after_fork() {
    memory_.abandon();
    ring_.abandon();
    wake_event_.close();
}

base::Result<std::unique_ptr<Backend>> make_uring_backend(const BackendOptions& options,
                                                          UringRungs rungs) {
    auto backend = std::make_unique<UringBackend>();
    PENSTOCK_CHECK(backend->open(options, rungs));
    return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace penstock::engine
