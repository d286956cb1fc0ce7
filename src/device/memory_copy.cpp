// SPDX-License-Identifier: Apache-2.0
// Copies between the host and GPUs outside of transfers: checkpoints stage a state and look at its
// bytes with them.
//
//   queue    a stream and an event of one GPU; taken from those that are kept, or made, by each
//   call order   what the caller's streams hold is waited for first, by this thread copy    all are
//   put on the streams, then each stream's event is asked until it has passed
//
// A queue that met an error waits until its stream is idle, so that no copy uses the caller's
// memory any more, and is not kept.
#include "base/assert.hpp"
#include "base/clock.hpp"
#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/owned.hpp"
#include "device/cuda/pointer.hpp"
#include "device/mover/stream_order.hpp"

#include <penstock/gpu.hpp>

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

namespace penstock {

namespace {

using base::fail;
using base::Result;
using device::Current;
using device::Driver;
using namespace device::cuda;  // NVIDIA's names, as in its documents

constexpr std::size_t kQueuesKept = 32;
// A copy engine of PCIe Gen5 moves so many bytes a microsecond.
constexpr std::uint64_t kBytesPerMicrosecond = 50'000;
constexpr base::Nanos kLookSoonest = 3'000;
constexpr base::Nanos kLookLatest = 20'000;
// Up to so many bytes the copies are through before a sleep would be: it takes 50 us and more.
constexpr std::uint64_t kSpinBytesMax = 1 << 20;
constexpr base::Nanos kSpin = 50'000;
// A GPU that does not answer for so long after an error has let go of its copies.
constexpr base::Nanos kPatience = 10'000'000'000;
// A context that cannot be made current so often in a row is gone, and took its copies with it.
constexpr int kRefusalsMax = 16;

void nap(base::Nanos time) {
    const timespec pause{0, time};
    ::nanosleep(&pause, nullptr);
}

Result<void> wait_for(const engine::MoveOrder* order) {
    while (order != nullptr) {
        PENSTOCK_TRY(passed, order->passed());
        if (passed) {
            break;
        }
        nap(kLookLatest);
    }
    return {};
}

CUdeviceptr address_of(const std::byte* memory) {
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
}

/// A stream of one GPU, and the event behind what was put on it.
struct CopyStream {
    std::int32_t device = 0;
    CUcontext context = nullptr;
    device::Stream stream;
    device::Event event;
    std::uint64_t bytes = 0;  ///< that were put on it by this call
    bool to_device = false;   ///< the last of its copies
};

class CopyStreams {
public:
    /// Kept until the process ends: CUDA's objects are left alone then.
    static CopyStreams& kept() {
        static auto* const queues = new CopyStreams;
        return *queues;
    }
    std::optional<CopyStream> take(std::int32_t device) {
        const std::lock_guard guard(mutex_);
        const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const CopyStream& queue) {
            return queue.device == device;
        });
        if (found == kept_.end()) {
            return std::nullopt;
        }
        CopyStream queue = std::move(*found);
        kept_.erase(found);
        return queue;
    }
    /// False where enough are kept: then the queue stays the caller's.
    bool put(CopyStream& queue) noexcept {
        PENSTOCK_ASSERT(!queue.stream.empty() && !queue.event.empty());
        const std::lock_guard guard(mutex_);
        if (kept_.size() == kQueuesKept) {
            return false;
        }
        kept_.push_back(std::move(queue));
        return true;
    }

private:
    CopyStreams() { kept_.reserve(kQueuesKept); }
    std::mutex mutex_;
    std::vector<CopyStream> kept_;
};

Result<CopyStream> queue_of(const Driver& driver, std::int32_t device) {
    if (auto kept = CopyStreams::kept().take(device)) {
        kept->bytes = 0;
        return std::move(*kept);
    }
    CopyStream queue;
    queue.device = device;
    PENSTOCK_TRY(context, device::primary_context(driver, device));
    queue.context = context;
    const Current current(driver, context);
    device::CallResult made = queue.stream.make_in(current);
    if (made.ok()) {
        made = queue.event.make_in(current);
    }
    if (!made.ok()) {
        return fail(device::object_refused(current, made, device));
    }
    return queue;
}

/// One call of copy_memory().
class Copying {
public:
    explicit Copying(const Driver& driver) : driver_(driver) {}
    Copying(const Copying&) = delete;
    Copying& operator=(const Copying&) = delete;

    /// Copies that still run, and queues that met an error, end here.
    ~Copying() {
        for (CopyStream& queue : queues_) {
            if (!sound_ || !CopyStreams::kept().put(queue)) {
                let_end(queue);
            }
        }
    }

    Result<void> run(std::span<const MemoryCopy> copies, std::span<const StreamHandle> streams) {
        std::vector<engine::MemoryPlace> places;
        for (const MemoryCopy& copy : copies) {
            const Memory there = gpu_side(copy);
            const engine::MemoryPlace place = engine::place_of(there);
            if (place.kind == MemoryKind::kDevice &&
                std::find(places.begin(), places.end(), place) == places.end()) {
                places.push_back(place);
            }
        }
        PENSTOCK_TRY(order, device::make_order(streams, places));
        queues_.reserve(places.size());
        for (const engine::MemoryPlace& place : places) {
            PENSTOCK_TRY(queue, queue_of(driver_, place.device));
            queues_.push_back(std::move(queue));
        }
        PENSTOCK_CHECK(wait_for(order.get()));
        sound_ = false;  // until all is through
        for (CopyStream& queue : queues_) {
            PENSTOCK_CHECK(put_on(queue, copies));
        }
        for (const CopyStream& queue : queues_) {
            PENSTOCK_CHECK(await(queue));
        }
        sound_ = true;
        return {};
    }

    static Memory gpu_side(const MemoryCopy& copy) {
        return copy.to.kind == MemoryKind::kDevice ? copy.to : to_write(copy.from);
    }

private:
    [[nodiscard]] base::Error failed(const CopyStream& queue, CUresult result,
                                     const char* call) const {
        return device::cuda_error(driver_, result, call, "copy",
                                  fmt::format("a copy {} the memory of GPU {}",
                                              queue.to_device ? "to" : "from", queue.device));
    }

    Result<void> put_on(CopyStream& queue, std::span<const MemoryCopy> copies) const {
        const Current current(driver_, queue.context);
        CUresult result = current.result();
        const char* call = "cuCtxPushCurrent";
        for (std::size_t i = 0; i < copies.size() && result == CUDA_SUCCESS; ++i) {
            const MemoryCopy& copy = copies[i];
            const Memory there = gpu_side(copy);
            if (there.kind != MemoryKind::kDevice || there.device != queue.device ||
                there.bytes == 0) {
                continue;
            }
            queue.bytes += there.bytes;
            queue.to_device = copy.to.kind == MemoryKind::kDevice;
            call = queue.to_device ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync";
            result = queue.to_device
                         ? driver_.cuMemcpyHtoDAsync(address_of(copy.to.data), copy.from.data,
                                                     there.bytes, queue.stream.get())
                         : driver_.cuMemcpyDtoHAsync(copy.to.data, address_of(copy.from.data),
                                                     there.bytes, queue.stream.get());
        }
        if (result == CUDA_SUCCESS) {
            call = "cuEventRecord";
            result = driver_.cuEventRecord(queue.event.get(), queue.stream.get());
        }
        return result == CUDA_SUCCESS ? Result<void>{} : fail(failed(queue, result, call));
    }

    Result<void> await(const CopyStream& queue) const {
        const auto expected = static_cast<base::Nanos>(queue.bytes * 1000 / kBytesPerMicrosecond);
        const base::Nanos pause = std::clamp(expected, kLookSoonest, kLookLatest);
        const base::SteadyClock clock;
        const base::Nanos spin_end = clock.now() + (queue.bytes <= kSpinBytesMax ? kSpin : 0);
        while (true) {
            {
                const Current current(driver_, queue.context);
                const CUresult result = current.result() == CUDA_SUCCESS
                                            ? driver_.cuEventQuery(queue.event.get())
                                            : current.result();
                if (result != CUDA_ERROR_NOT_READY) {
                    return result == CUDA_SUCCESS ? Result<void>{}
                                                  : fail(failed(queue, result, "cuEventQuery"));
                }
            }
            if (clock.now() >= spin_end) {
                nap(pause);
            }
        }
    }

    void let_end(const CopyStream& queue) const noexcept {
        const base::SteadyClock clock;
        const base::Nanos end = clock.now() + kPatience;
        int refusals = 0;  // of the context, in a row
        while (clock.now() < end && refusals < kRefusalsMax) {
            {
                const Current current(driver_, queue.context);
                refusals = current.result() == CUDA_SUCCESS ? 0 : refusals + 1;
                if (refusals == 0 &&
                    driver_.cuStreamQuery(queue.stream.get()) != CUDA_ERROR_NOT_READY) {
                    return;
                }
            }
            nap(kLookLatest);
        }
    }

    const Driver& driver_;
    std::vector<CopyStream> queues_;
    bool sound_ = true;
};

base::Error wrong(ErrorCode code, const std::string& why) {
    return base::error(code, "copy", why);
}

// Copies of the host are made here, where all is known to be sound; true: a GPU has a part.
Result<bool> check(std::span<const MemoryCopy> copies, const Driver*& driver) {
    bool on_gpu = false;
    for (const MemoryCopy& copy : copies) {
        if (copy.to.bytes != copy.from.bytes) {
            return fail(wrong(ErrorCode::kInvalidArgument,
                              fmt::format("{} were given to go to {}; give as many on both sides",
                                          base::format_bytes(copy.from.bytes),
                                          base::format_bytes(copy.to.bytes))));
        }
        const bool to_gpu = copy.to.kind == MemoryKind::kDevice;
        const bool from_gpu = copy.from.kind == MemoryKind::kDevice;
        if (to_gpu && from_gpu) {
            return fail(wrong(ErrorCode::kUnsupported,
                              "both sides are memory of GPUs, and one has to be the host's; use "
                              "the copies of CUDA or of your framework"));
        }
        if ((!to_gpu && !from_gpu) || copy.to.bytes == 0) {
            continue;
        }
        if (driver == nullptr) {
            PENSTOCK_TRY(loaded, device::driver());
            driver = loaded;
        }
        PENSTOCK_CHECK(device::check_memory(*driver, Copying::gpu_side(copy)));
        on_gpu = true;
    }
    return on_gpu;
}

}  // namespace

void copy_memory(std::span<const MemoryCopy> copies, std::span<const StreamHandle> streams) {
    const Driver* driver = nullptr;
    const bool on_gpu = base::unwrap(check(copies, driver));
    for (const MemoryCopy& copy : copies) {
        if (copy.to.kind == MemoryKind::kHost && copy.from.kind == MemoryKind::kHost &&
            copy.to.bytes != 0) {
            std::memcpy(copy.to.data, copy.from.data, copy.to.bytes);
        }
    }
    if (on_gpu) {
        base::unwrap(Copying(*driver).run(copies, streams));
    }
}

// ---- memory that is pinned

PinnedMemory::PinnedMemory(std::span<std::byte> memory, std::int32_t device, bool is_new) {
    using device::PinnedPages;
    if (memory.empty()) {
        return;
    }
    auto pages = std::make_shared<PinnedPages>(base::unwrap(PinnedPages::make(
        device, memory, is_new ? PinnedPages::Pages::kNew : PinnedPages::Pages::kOfOthers)));
    bytes_ = memory.size();
    gpu_address_ = pages->address();
    owner_ = std::move(pages);
}

// ---- what streams hold

StreamMark::StreamMark(std::span<const StreamHandle> streams,
                       std::span<const std::int32_t> devices) {
    std::vector<engine::MemoryPlace> places;
    for (const std::int32_t device : devices) {
        places.push_back({MemoryKind::kDevice, device});
    }
    if (!streams.empty() || !places.empty()) {
        order_ = base::unwrap(device::make_order(streams, places));
    }
}

void StreamMark::wait() const {
    base::unwrap(wait_for(static_cast<const engine::MoveOrder*>(order_.get())));
}

}  // namespace penstock
