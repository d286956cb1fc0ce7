// SPDX-License-Identifier: Apache-2.0
#include "device/mover/gpu_mover.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/clock.hpp"
#include "device/cuda/context.hpp"
#include "device/mover/copy_streams.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

namespace penstock::device {

using base::Result;
using engine::Move;
using engine::MoveTo;
using namespace cuda;  // NVIDIA's names, as in its documents

namespace {

constexpr base::Nanos kNap = 20'000;
constexpr std::uint64_t kLooksPerQueue = 4;
// The end of a mover waits so long for copies; a GPU that takes longer does not answer any more.
constexpr base::Nanos kPatience = 10'000'000'000;

// A driver that refuses so often in a row to say how far copies are, or to make their context
// current, has lost its GPU, and with it the copies. A single refusal says nothing of them.
constexpr std::uint32_t kRefusalsMax = 16;

constexpr int kStepShift = 16;
constexpr unsigned int kResultMask = (1U << kStepShift) - 1;

// A wish: where it cannot be had, the memory lies wherever the kernel puts it.
void prefer_node(const memory::Block& block, int node) {
    constexpr int kPreferred = 1;  // MPOL_PREFERRED
    constexpr int kBits = 64;
    if (node >= 0 && node < kBits) {
        const unsigned long mask = 1UL << static_cast<unsigned int>(node);
        static_cast<void>(::syscall(SYS_mbind, block.data(),
                                    base::align_up(block.size(), base::kPageBytes), kPreferred,
                                    &mask, kBits + 1, 0));
    }
}

CUdeviceptr address_of(const std::byte* memory) {
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
}

}  // namespace

GpuMover::GpuMover(const Driver& driver, CUcontext context, std::int32_t device,
                   const base::Clock& clock)
    : driver_(driver),
      context_(context),
      clock_(clock),
      device_(device),
      batches_(driver.cuMemcpyBatchAsync != nullptr) {}

Result<std::unique_ptr<GpuMover>> GpuMover::make(std::int32_t device, const base::Clock& clock) {
    return base::as_result("gpu", [&]() -> Result<std::unique_ptr<GpuMover>> {
        PENSTOCK_TRY(gpu, gpu_context(device));
        const Driver* const calls = gpu.driver;
        const CUcontext context = gpu.context;
        std::unique_ptr<GpuMover> mover(new GpuMover(*calls, context, device, clock));
        const Current current(gpu);
        for (MoveStream* queue : {&mover->in_, &mover->out_}) {
            if (const CallResult made = queue->stream.make_in(current); !made.ok()) {
                return base::fail(object_refused(current, made, device));
            }
        }
        int node = -1;
        CUdevice number = 0;
        if (calls->cuDeviceGet(&number, device) == CUDA_SUCCESS &&
            calls->cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, number) ==
                CUDA_SUCCESS) {
            mover->numa_node_ = node;
        }
        for (const MoveStream* queue : {&mover->in_, &mover->out_}) {
            add_copy_stream({context, device,
                             queue == &mover->in_ ? MoveTo::kExtents : MoveTo::kSlot,
                             queue->stream.get()});
        }
        return mover;
    });
}

// A context that is refused is tried again, for memory must not stay registered.
GpuMover::~GpuMover() {
    if (abandoned_ || !may_call_driver()) {
        leave_all();
        return;
    }
    for (const MoveStream* queue : {&in_, &out_}) {
        remove_copy_stream(queue->stream.get());
    }
    for (std::uint32_t tries = 0; tries < kRefusalsMax; ++tries) {
        const Current current(driver_, context_);
        if (current.result() != CUDA_SUCCESS) {
            continue;
        }
        if (!wait_until_idle()) {
            break;
        }
        PENSTOCK_ASSERT(in_.out.empty() && out_.out.empty());
        for (const auto& flight : flights_) {
            flight->event.end(current);
        }
        for (MoveStream* queue : {&in_, &out_}) {
            queue->stream.end(current);
        }
        for (PinnedPages& pages : pinned_) {
            pages.end(current);
        }
        return;
    }
    leave_all();
}

// Copies may be out: pinned pages stay where they are, also when they are unmapped.
void GpuMover::leave_all() noexcept {
    for (const auto& flight : flights_) {
        flight->event.leave();
    }
    for (MoveStream* queue : {&in_, &out_}) {
        queue->stream.leave();
    }
    for (PinnedPages& pages : pinned_) {
        pages.leave();
    }
}

// The moves themselves are not touched: they may be gone.
bool GpuMover::wait_until_idle() {
    const base::Nanos end = clock_.now() + kPatience;
    for (MoveStream* queue : {&in_, &out_}) {
        for (; queue->out.front() != nullptr; queue->out.pop_front()) {
            CUresult seen = CUDA_SUCCESS;
            while (ask(*queue, *queue->out.front(), seen) == CUDA_ERROR_NOT_READY) {
                if (clock_.now() > end) {
                    return false;
                }
                const timespec nap{0, kNap};
                ::nanosleep(&nap, nullptr);
            }
        }
    }
    return true;
}

Result<memory::Block> GpuMover::slot_memory(std::uint64_t bytes) {
    return base::as_result("gpu", [&]() -> Result<memory::Block> {
        // A child of a fork has not got it: it would share pages that a device writes to.
        PENSTOCK_TRY(block, memory::Block::make(bytes, {.keep_on_fork = false, .lasting = true}));
        prefer_node(block, numa_node_);
        pinned_.reserve(pinned_.size() + 1);
        const Current current(driver_, context_);
        PinnedPages pages;
        const CallResult made = pages.make_in(current, block.bytes(), PinnedPages::Pages::kNew);
        if (!made.ok()) {
            return base::fail(pinning_refused(current, made, bytes, device_));
        }
        PENSTOCK_ASSERT(pages.get() == block.data());
        pinned_.push_back(std::move(pages));
        return block;
    });
}

void GpuMover::fail(Move& move, Step step, CUresult result) {
    if (move.error == 0) {
        move.error = static_cast<int>((static_cast<unsigned int>(step) << kStepShift) |
                                      (static_cast<unsigned int>(result) & kResultMask));
        move.bytes = 0;
    }
}

GpuMover::MoveStream& GpuMover::queue_of(const Move& move) {
    return move.to == MoveTo::kExtents ? in_ : out_;
}

CUresult GpuMover::take_flight(const Current& current, Flight*& flight) {
    flight = free_.pop_front();
    if (flight != nullptr) {
        return CUDA_SUCCESS;
    }
    try {
        flights_.reserve(flights_.size() + 1);
        auto made = std::make_unique<Flight>();
        const CallResult event = made->event.make_in(current);
        if (event.ok()) {
            flight = made.get();
            flights_.push_back(std::move(made));
        }
        return event.result;
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
}

void GpuMover::start(Move& move) {
    move.error = 0;
    MoveStream& queue = queue_of(move);
    const Current current(driver_, context_);
    Flight* flight = nullptr;
    bool queued = false;
    if (current.result() != CUDA_SUCCESS) {
        fail(move, Step::kContext, current.result());
    } else if (const CUresult taken = take_flight(current, flight); taken != CUDA_SUCCESS) {
        fail(move, Step::kMemory, taken);
    } else if (const CUresult copied = copy(queue, move, queued); copied != CUDA_SUCCESS) {
        fail(move, Step::kCopy, copied);
    }
    if (!queued) {
        if (flight != nullptr) {
            free_.push_front(*flight);
        }
        done_.push_back(move);
        return;
    }
    // Whatever was queued uses the slot, also where a later call failed.
    flight->move = &move;
    const CUresult recorded = driver_.cuEventRecord(flight->event.get(), queue.stream.get());
    flight->recorded = recorded == CUDA_SUCCESS;
    if (!flight->recorded) {
        fail(move, Step::kRecord, recorded);
    }
    if (queue.out.empty()) {
        queue.rate.begin(clock_.now());
    }
    flight->bytes = move.bytes;
    queue.bytes += flight->bytes;
    queue.out.push_back(*flight);
}

// Pieces that adjoin are one copy. The end of one allocation may adjoin the next, and the driver
// refuses a copy that is in both: then each piece is copied by itself.
CUresult GpuMover::copy(MoveStream& queue, Move& move, bool& queued) {
    bool joins = true;
    const CUresult result = copy(queue, move, queued, joins);
    if (result != CUDA_ERROR_INVALID_VALUE || !joins) {
        return result;
    }
    joins = false;
    return copy(queue, move, queued, joins);
}

// `joins`: whether pieces may be one copy; and then, whether any are.
CUresult GpuMover::copy(MoveStream& queue, Move& move, bool& queued, bool& joins) {
    const bool may_join = std::exchange(joins, false);
    const bool to_device = move.to == MoveTo::kExtents;
    CUresult result = CUDA_SUCCESS;
    batch_.count = 0;
    const auto flush = [&] {
        if (result == CUDA_SUCCESS && batch_.count != 0) {
            result = hand_over(queue, to_device);
            queued = true;
        }
        batch_.count = 0;
    };
    const std::uint64_t bytes =
        engine::for_each_piece(move, [&](std::byte* memory, std::byte* slot, std::uint64_t step) {
            const CUdeviceptr to = address_of(to_device ? memory : slot);
            const CUdeviceptr from = address_of(to_device ? slot : memory);
            if (may_join && batch_.count != 0) {
                const std::size_t last = batch_.count - 1;
                if (batch_.to[last] + batch_.bytes[last] == to &&
                    batch_.from[last] + batch_.bytes[last] == from) {
                    batch_.bytes[last] += step;
                    joins = true;
                    return;
                }
            }
            if (batch_.count == Batch::kPieces) {
                flush();
            }
            batch_.to[batch_.count] = to;
            batch_.from[batch_.count] = from;
            batch_.bytes[batch_.count] = step;
            ++batch_.count;
        });
    flush();
    move.bytes = bytes;
    return result;
}

// One call where the driver takes several copies, else one a piece.
CUresult GpuMover::hand_over(MoveStream& queue, bool to_device) {
    PENSTOCK_ASSERT(batch_.count != 0 && batch_.count <= Batch::kPieces);
    if (batches_ && batch_.count > 1) {
        CUmemcpyAttributes attributes{};
        attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        std::size_t first = 0;
        std::size_t failed = 0;
        const CUresult result = driver_.cuMemcpyBatchAsync(
            batch_.to.data(), batch_.from.data(), batch_.bytes.data(), batch_.count, &attributes,
            &first, 1, &failed, queue.stream.get());
        if (result != CUDA_ERROR_NOT_SUPPORTED) {
            return result;
        }
        batches_ = false;
    }
    CUresult result = CUDA_SUCCESS;
    for (std::size_t i = 0; i < batch_.count && result == CUDA_SUCCESS; ++i) {
        result =
            to_device
                ? driver_.cuMemcpyHtoDAsync(
                      batch_.to[i],
                      reinterpret_cast<const void*>(static_cast<std::uintptr_t>(batch_.from[i])),
                      batch_.bytes[i], queue.stream.get())
                : driver_.cuMemcpyDtoHAsync(
                      reinterpret_cast<void*>(static_cast<std::uintptr_t>(batch_.to[i])),
                      batch_.from[i], batch_.bytes[i], queue.stream.get());
    }
    return result;
}

// An event that fails says nothing of its copy, which may still use the slot; then the stream is
// asked. `seen` gets the first error.
CUresult GpuMover::ask(MoveStream& queue, Flight& flight, CUresult& seen) const {
    CUresult result = CUDA_ERROR_NOT_READY;
    if (flight.recorded) {
        result = driver_.cuEventQuery(flight.event.get());
        flight.recorded = result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY;
        seen = result;
    }
    if (!flight.recorded) {
        result = driver_.cuStreamQuery(queue.stream.get());
    }
    const bool says = result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY;
    queue.refusals = says ? 0 : queue.refusals + 1;
    return queue.refusals == 0 || queue.refusals >= kRefusalsMax ? result : CUDA_ERROR_NOT_READY;
}

base::Fifo<Move> GpuMover::reap() {
    base::Fifo<Move> done;
    done.take(done_);
    if (in_.out.empty() && out_.out.empty()) {
        return done;
    }
    const Current current(driver_, context_);
    refusals_ = current.result() == CUDA_SUCCESS ? 0 : refusals_ + 1;
    if (refusals_ == 0 || refusals_ >= kRefusalsMax) {
        reap(in_, current.result(), done);
        reap(out_, current.result(), done);
    }
    return done;
}

void GpuMover::reap(MoveStream& queue, CUresult context, base::Fifo<Move>& done) {
    std::uint64_t bytes = 0;
    while (Flight* flight = queue.out.front()) {
        CUresult result = context;
        if (context == CUDA_SUCCESS) {
            CUresult seen = CUDA_SUCCESS;
            result = ask(queue, *flight, seen);
            if (seen != CUDA_SUCCESS && seen != CUDA_ERROR_NOT_READY) {
                fail(*flight->move, Step::kQuery, seen);
            }
        }
        if (result == CUDA_ERROR_NOT_READY) {
            break;
        }
        bytes += flight->bytes;
        if (result != CUDA_SUCCESS) {
            fail(*flight->move, context == CUDA_SUCCESS ? Step::kQuery : Step::kContext, result);
        }
        queue.out.pop_front();
        done.push_back(*flight->move);
        flight->move = nullptr;
        free_.push_front(*flight);
    }
    if (bytes != 0) {
        PENSTOCK_ASSERT(bytes <= queue.bytes);
        queue.bytes -= bytes;
        queue.rate.ended(bytes, clock_.now());
    }
}

base::Nanos GpuMover::look_again() const {
    const base::Nanos now = clock_.now();
    base::Nanos soonest = kNap;
    bool any = false;
    for (const MoveStream* queue : {&in_, &out_}) {
        if (const Flight* first = queue->out.front(); first != nullptr) {
            const std::uint64_t bytes = std::max(first->bytes, queue->bytes / kLooksPerQueue);
            const base::Nanos next = queue->rate.look_again(bytes, now);
            soonest = any ? std::min(soonest, next) : next;
            any = true;
        }
    }
    return soonest;
}

base::Error GpuMover::explain(const Move& move) {
    constexpr std::array kCalls = {"cuEventCreate", "cuCtxPushCurrent", "cuMemcpyAsync",
                                   "cuEventRecord", "cuEventQuery"};
    const auto code = static_cast<unsigned int>(move.error);
    const char* call = kCalls[std::min<std::size_t>(code >> kStepShift, kCalls.size() - 1)];
    return cuda_error(driver_, static_cast<CUresult>(code & kResultMask), call,
                      move.to == MoveTo::kExtents ? "read" : "write",
                      fmt::format("a copy {} the memory of GPU {}",
                                  move.to == MoveTo::kExtents ? "to" : "from", device_));
}

Result<std::unique_ptr<engine::Mover>> make_mover(const engine::MemoryPlace& place,
                                                  const std::function<void()>& /*wake*/) {
    if (place.kind == MemoryKind::kHost) {
        return std::unique_ptr<engine::Mover>();
    }
    PENSTOCK_TRY(made, GpuMover::make(place.device));
    return std::unique_ptr<engine::Mover>(std::move(made));
}

}  // namespace penstock::device
