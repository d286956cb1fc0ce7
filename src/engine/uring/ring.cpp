// SPDX-License-Identifier: Apache-2.0
#include "engine/uring/ring.hpp"

#include "base/assert.hpp"
#include "os/io_uring_access.hpp"

#include <fmt/format.h>
#include <linux/time_types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

namespace penstock::engine {

namespace {

unsigned flags_of(const UringRungs& rungs) {
    unsigned flags = IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE;
    if (rungs.submit_all) {
        flags |= IORING_SETUP_SUBMIT_ALL;
    }
    if (rungs.single_issuer) {
        flags |= IORING_SETUP_SINGLE_ISSUER;
    }
    if (rungs.defer_taskrun && rungs.single_issuer) {
        flags |= IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
    } else if (rungs.coop_taskrun) {
        flags |= IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
    }
    return flags;
}

// Newest first, so that each step is a kernel that exists.
bool step_down(UringRungs& rungs) {
    for (bool UringRungs::*rung : {&UringRungs::defer_taskrun, &UringRungs::single_issuer,
                                   &UringRungs::coop_taskrun, &UringRungs::submit_all}) {
        if (rungs.*rung) {
            rungs.*rung = false;
            return true;
        }
    }
    return false;
}

base::Failure refused(int setup_errno) {
    const os::IoUringAccess access = os::explain_io_uring_errno(setup_errno);
    std::string message = fmt::format("io_uring cannot be used: {}", access.reason);
    if (!access.cure.empty()) {
        message += fmt::format("; {}", access.cure);
    }
    base::Error error = base::error(ErrorCode::kUnsupported, "io_uring_setup", message);
    error.system_errno = setup_errno;
    return base::fail(std::move(error));
}

}  // namespace

Ring::~Ring() {
    if (open_) {
        io_uring_queue_exit(&ring_);
    }
}

base::Result<void> Ring::open(std::uint32_t entries, UringRungs rungs) {
    for (;;) {
        io_uring_params params{};
        params.flags = flags_of(rungs);
        params.cq_entries = 2 * entries;
        const int result = io_uring_queue_init_params(entries, &ring_, &params);
        if (result == 0) {
            break;
        }
        if (result != -EINVAL || !step_down(rungs)) {
            return refused(-result);
        }
    }
    open_ = true;
    if ((ring_.features & IORING_FEAT_EXT_ARG) == 0) {
        return base::fail(base::error(
            ErrorCode::kUnsupported, "io_uring_setup",
            "io_uring cannot be used: this kernel has no waiting with a time limit (Linux 5.11); "
            "use Linux 5.15 or newer"));
    }
    if (ring_.sq.ring_entries < entries || ring_.cq.ring_entries < 2 * entries) {
        return base::fail(base::error(
            ErrorCode::kInvalidArgument, "io_uring_setup",
            fmt::format(
                "a ring of {} entries was asked for and the kernel gives at most {}; choose "
                "a smaller queue depth",
                entries, ring_.sq.ring_entries)));
    }
    // A sandbox may allow the set-up and refuse the rest: found here, and not by each request.
    int entered = enter(0, 0);
    while (entered == -EINTR) {
        entered = enter(0, 0);
    }
    if (entered < 0) {
        base::Error error = base::error(
            ErrorCode::kUnsupported, "io_uring_enter",
            fmt::format("io_uring cannot be used: io_uring_setup works and io_uring_enter is "
                        "refused: {} (errno {}); allow it in the seccomp profile",
                        std::generic_category().message(-entered), -entered));
        error.system_errno = -entered;
        return base::fail(std::move(error));
    }
    // A child of fork() must not see this memory: both would take each other's completions.
    if (const int result = io_uring_ring_dontfork(&ring_); result < 0) {
        return base::fail(base::system_error(-result, "madvise(MADV_DONTFORK)", ""));
    }
    return {};
}

bool Ring::has_task_work() const {
    constexpr unsigned kEnterFor = IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW;
    return (IO_URING_READ_ONCE(*ring_.sq.kflags) & kEnterFor) != 0;
}

void Ring::flush() {
    io_uring_sq& queue = ring_.sq;
    if (queue.sqe_head != queue.sqe_tail) {
        queue.sqe_head = queue.sqe_tail;
        // The kernel reads it in the system call that this thread makes; no barrier needed.
        IO_URING_WRITE_ONCE(*queue.ktail, queue.sqe_tail);
    }
}

int Ring::enter(unsigned min_complete, base::Nanos timeout) {
    flush();
    __kernel_timespec limit{};
    io_uring_getevents_arg argument{};
    argument.sigmask_sz = _NSIG / 8;
    if (min_complete > 0 && timeout != base::kForever) {
        limit.tv_sec = timeout / 1'000'000'000;
        limit.tv_nsec = timeout % 1'000'000'000;
        argument.ts = reinterpret_cast<std::uint64_t>(&limit);
    }
    // GETEVENTS also when there is nothing to wait for: it is what runs deferred task work.
    const int result = io_uring_enter2(static_cast<unsigned>(ring_.ring_fd), unsubmitted(),
                                       min_complete, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                                       reinterpret_cast<sigset_t*>(&argument), sizeof(argument));
    // EEXIST: a thread that is not the ring's. That is a mistake of ours and would hang everybody.
    PENSTOCK_ASSERT(result != -EEXIST);
    return result;
}

// Empty, by a list of nothing: the flag for that (IORING_RSRC_REGISTER_SPARSE) is of Linux 5.19.
int Ring::make_memory_table() {
    const std::array<iovec, kMemoryNumbers> none{};
    return -io_uring_register_buffers_tags(&ring_, none.data(), nullptr, kMemoryNumbers);
}

int Ring::register_memory(int number, void* data, std::uint64_t bytes) {
    const iovec piece{data, bytes};
    const int result = io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(number),
                                                            &piece, nullptr, 1);
    return result < 0 ? -result : 0;
}

void Ring::abandon() {
    if (open_) {
        ::close(ring_.ring_fd);
        open_ = false;
    }
}

std::string Ring::detail() const {
    std::string flags;
    const auto name = [&](unsigned flag, const char* text) {
        if ((ring_.flags & flag) != 0) {
            flags += flags.empty() ? text : std::string("|") + text;
        }
    };
    name(IORING_SETUP_SINGLE_ISSUER, "SINGLE_ISSUER");
    name(IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN");
    name(IORING_SETUP_COOP_TASKRUN, "COOP_TASKRUN");
    name(IORING_SETUP_TASKRUN_FLAG, "TASKRUN_FLAG");
    name(IORING_SETUP_SUBMIT_ALL, "SUBMIT_ALL");
    if (flags.empty()) {
        flags = "no optional flags";
    }
    return fmt::format("{}, {} submission and {} completion entries", flags, ring_.sq.ring_entries,
                       ring_.cq.ring_entries);
}

}  // namespace penstock::engine
