// SPDX-License-Identifier: Apache-2.0
#include "engine/aio/aio_backend.hpp"

#include "base/assert.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace penstock::engine {

namespace {

// No request has this address.
constexpr std::uint64_t kWakeTag = 0;
constexpr std::uint32_t kDepthMax = 16384;
constexpr std::size_t kRequestBytesMax = 0x7ffff000;  // the kernel cuts longer ones

}  // namespace

base::Result<void> AioBackend::open(const BackendOptions& options) {
    if (options.depth == 0 || options.depth > kDepthMax) {
        return base::fail(base::error(
            ErrorCode::kInvalidArgument, "io_setup",
            fmt::format("queue depth {} was asked for; choose 1 to {}", options.depth, kDepthMax)));
    }
    depth_ = options.depth;
    PENSTOCK_CHECK(context_.open(depth_ + 1));
    PENSTOCK_CHECK(wake_event_.open(EFD_NONBLOCK));
    iocbs_.resize(depth_ + 1);
    events_.resize(depth_ + 1);
    pending_.reserve(depth_ + 1);
    free_.reserve(depth_ + 1);
    for (iocb& each : iocbs_) {
        free_.push_back(&each);
    }
    // At once, so that a kernel that cannot poll is found here and not in the middle of the work.
    arm_wake();
    long taken = context_.submit(pending_);
    while (taken == -EINTR) {
        taken = context_.submit(pending_);
    }
    if (taken < 1) {
        return base::fail(base::error(
            ErrorCode::kUnsupported, "io_submit",
            fmt::format(
                "Linux AIO cannot be used: it does not take IOCB_CMD_POLL (errno {}), which "
                "Linux has since 4.19; use the posix backend",
                -taken)));
    }
    pending_.clear();
    return {};
}

AioBackend::~AioBackend() = default;  // the context cancels the poll and waits for the rest

std::string AioBackend::detail() const {
    return fmt::format("raw system calls, {} entries, events read {}", depth_ + 1,
                       context_.can_peek() ? "from the ring" : "by io_getevents");
}

void AioBackend::push(Request& request) {
    PENSTOCK_ASSERT(free_.size() >
                    (wake_event_.armed() ? 0U : 1U));  // more than `depth` were pushed
    iocb* control = free_.back();
    free_.pop_back();
    *control = iocb{};
    control->aio_data = reinterpret_cast<std::uint64_t>(&request);
    control->aio_fildes = static_cast<std::uint32_t>(request.file->descriptor(request.io));
    control->aio_offset = static_cast<std::int64_t>(request.offset);
    const bool read = request.op == Op::kRead;
    if (request.pieces.size() == 1) {
        const iovec& piece = request.pieces.front();
        control->aio_lio_opcode = read ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
        control->aio_buf = reinterpret_cast<std::uint64_t>(piece.iov_base);
        control->aio_nbytes = std::min(piece.iov_len, kRequestBytesMax);
    } else {
        control->aio_lio_opcode = read ? IOCB_CMD_PREADV : IOCB_CMD_PWRITEV;
        control->aio_buf = reinterpret_cast<std::uint64_t>(request.pieces.data());
        control->aio_nbytes = request.pieces.size();
    }
    pending_.push_back(control);
}

void AioBackend::enter(std::uint32_t want, base::Nanos timeout) {
    harvest();
    const bool may_sleep = want > 0 && timeout > 0;
    for (;;) {
        if (may_sleep && finished_.size() < want && !wake_event_.woken() && !wake_event_.armed()) {
            arm_wake();
        }
        submit();
        harvest();
        if (!may_sleep || wake_event_.woken() || finished_.size() >= want) {
            break;
        }
        sleep(want - finished_.size(), timeout);
        // A signal may end a sleep early. One that has a limit simply ends; one that has none goes
        // on.
        if (wake_event_.woken() || finished_.size() >= want || timeout != base::kForever) {
            break;
        }
    }
    if (want > 0) {
        wake_event_.set_woken(false);
    }
}

void AioBackend::submit() {
    while (!pending_.empty() && submit_some()) {
    }
}

// One io_submit; false when the kernel's queue is full.
bool AioBackend::submit_some() {
    count_system_call();
    const long taken = context_.submit(pending_);
    if (taken > 0) {
        const auto end = pending_.begin() + taken;
        for (auto each = pending_.begin(); each != end; ++each) {
            in_kernel_ += (*each)->aio_data == kWakeTag ? 0 : 1;
        }
        pending_.erase(pending_.begin(), end);
        return true;
    }
    // Full, but with nothing of ours in it: no completion would ever make room, so that is a
    // result.
    if (taken == -EAGAIN && in_kernel_ > 0) {
        return false;
    }
    iocb* refused = pending_.front();
    pending_.erase(pending_.begin());
    free_.push_back(refused);
    if (refused->aio_data == kWakeTag) {
        wake_event_.set_armed(false);
        wake_event_.set_woken(true);  // a sleep could not be ended now
    } else {
        finished_.push(*reinterpret_cast<Request*>(refused->aio_data),
                       taken == 0 ? -EAGAIN : taken);
    }
    return true;
}

void AioBackend::sleep(std::uint32_t want, base::Nanos timeout) {
    if (timeout == base::kForever) {
        want = 1;  // or a wake-up, which is one event, would have to wait for others
    } else if (!pending_.empty()) {
        want = std::min(want, in_kernel_);  // the others are not there to be waited for
    }
    count_system_call();
    const long came = context_.wait(std::min(want, depth_), events_, timeout);
    for (long i = 0; i < came; ++i) {
        take(events_[static_cast<std::size_t>(i)]);
    }
}

std::size_t AioBackend::reap(std::span<Request*> done) {
    if (finished_.size() < done.size()) {
        harvest();
    }
    return finished_.take(done);
}

void AioBackend::harvest() {
    std::size_t count = context_.peek(events_);
    if (!context_.can_peek() && in_kernel_ > 0) {
        count_system_call();
        count = static_cast<std::size_t>(std::max(0L, context_.wait(0, events_, 0)));
    }
    for (std::size_t i = 0; i < count; ++i) {
        take(events_[i]);
    }
}

void AioBackend::take(const io_event& event) {
    free_.push_back(reinterpret_cast<iocb*>(event.obj));
    if (event.data != kWakeTag) {
        --in_kernel_;
        finished_.push(*reinterpret_cast<Request*>(event.data), event.res);
        return;
    }
    wake_event_.set_armed(false);
    std::uint64_t value = 0;
    count_system_call();
    if (::read(wake_event_.fd(), &value, sizeof(value)) > 0) {
        wake_event_.arrived();
    }
}

void AioBackend::arm_wake() {
    iocb* control = free_.back();
    free_.pop_back();
    *control = iocb{};
    control->aio_data = kWakeTag;
    control->aio_lio_opcode = IOCB_CMD_POLL;
    control->aio_fildes = static_cast<std::uint32_t>(wake_event_.fd());
    control->aio_buf = POLLIN;
    pending_.push_back(control);
    wake_event_.set_armed(true);
}

void AioBackend::count_system_call() {
    system_calls_.store(system_calls_.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
}

void AioBackend::abandon_after_fork() {
    context_.abandon();
    wake_event_.close();
}

base::Result<std::unique_ptr<Backend>> make_aio_backend(const BackendOptions& options) {
    auto backend = std::make_unique<AioBackend>();
    PENSTOCK_CHECK(backend->open(options));
    return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace penstock::engine
