// SPDX-License-Identifier: Apache-2.0
#include "engine/aio/aio_context.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <string>

namespace penstock::engine {

// The head of the ring as fs/aio.c lays it out; `entries` events follow at `header_bytes`.
struct AioContext::EventRing {
    unsigned id;
    unsigned entries;
    unsigned head;
    unsigned tail;
    unsigned magic;
    unsigned compat_features;
    unsigned incompat_features;
    unsigned header_bytes;
};

namespace {

constexpr unsigned kRingMagic = 0xa10a10a1;

std::string sysctl(const char* path) {
    std::string value;
    std::ifstream(path) >> value;
    return value.empty() ? "unknown" : value;
}

base::Failure refused(int setup_errno, std::uint32_t entries) {
    std::string why;
    switch (setup_errno) {
        case EAGAIN:
            why = fmt::format(
                "{} entries were asked for and this machine's are used up (fs.aio-nr={} of "
                "fs.aio-max-nr={}); sysctl -w fs.aio-max-nr=1048576",
                entries, sysctl("/proc/sys/fs/aio-nr"), sysctl("/proc/sys/fs/aio-max-nr"));
            break;
        case ENOSYS:
            why = "this kernel or sandbox has no AIO (CONFIG_AIO); use the posix backend";
            break;
        case EPERM:
        case EACCES:
            why =
                "a seccomp filter forbids io_setup; allow the io_* system calls in the "
                "container's profile or use the posix backend";
            break;
        case EINVAL:
            why = fmt::format(
                "the kernel gives no context of {} entries; choose a smaller queue "
                "depth",
                entries);
            break;
        default:
            why = "the system refused io_setup; free memory or use the posix backend";
            break;
    }
    base::Error error =
        base::error(ErrorCode::kUnsupported, "io_setup",
                    fmt::format("Linux AIO cannot be used: {} (errno {})", why, setup_errno));
    error.system_errno = setup_errno;
    return base::fail(std::move(error));
}

}  // namespace

AioContext::~AioContext() {
    if (id_ != 0) {
        // Cancels what can be cancelled (the poll of the wake-up) and waits for the rest.
        ::syscall(SYS_io_destroy, id_);
    }
}

base::Result<void> AioContext::open(std::uint32_t entries) {
    if (::syscall(SYS_io_setup, entries, &id_) < 0) {
        return refused(errno, entries);
    }
    auto* ring = reinterpret_cast<EventRing*>(id_);
    if (ring->magic == kRingMagic && ring->incompat_features == 0) {
        ring_ = ring;
    }
    return {};
}

long AioContext::submit(std::span<iocb*> requests) {
    const long taken = ::syscall(SYS_io_submit, id_, requests.size(), requests.data());
    return taken < 0 ? -errno : taken;
}

long AioContext::wait(std::uint32_t min_events, std::span<io_event> events, base::Nanos timeout) {
    timespec limit{};
    limit.tv_sec = static_cast<time_t>(timeout / 1'000'000'000);
    limit.tv_nsec = static_cast<long>(timeout % 1'000'000'000);
    const long came = ::syscall(SYS_io_getevents, id_, long{min_events}, events.size(),
                                events.data(), timeout == base::kForever ? nullptr : &limit);
    return came < 0 ? -errno : came;
}

std::size_t AioContext::peek(std::span<io_event> events) {
    if (ring_ == nullptr) {
        return 0;
    }
    const auto* entries = reinterpret_cast<const io_event*>(reinterpret_cast<const char*>(ring_) +
                                                            ring_->header_bytes);
    std::atomic_ref<unsigned> shared_head(ring_->head);
    unsigned head = shared_head.load(std::memory_order_relaxed);
    const unsigned tail = std::atomic_ref<unsigned>(ring_->tail).load(std::memory_order_acquire);
    std::size_t count = 0;
    while (head != tail && count < events.size()) {
        events[count++] = entries[head];
        head = head + 1 == ring_->entries ? 0 : head + 1;
    }
    if (count > 0) {
        shared_head.store(head, std::memory_order_release);
    }
    return count;
}

void AioContext::abandon() {
    id_ = 0;
    ring_ = nullptr;
}

}  // namespace penstock::engine
