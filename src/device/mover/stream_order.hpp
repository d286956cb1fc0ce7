// SPDX-License-Identifier: Apache-2.0
// What a transfer begins after: the work that streams of the caller held when he asked. An event is
// recorded on each at the call, and asked until it has passed; neither a thread nor a stream of
// ours waits for it, for what is queued there later would wait, too.
#pragma once

#include "base/result.hpp"
#include "device/cuda/owned.hpp"
#include "engine/mover.hpp"

#include <penstock/gpu.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace penstock::device {

class StreamOrder final : public engine::MoveOrder {
public:
    explicit StreamOrder(const Driver& driver);
    StreamOrder(const StreamOrder&) = delete;
    StreamOrder& operator=(const StreamOrder&) = delete;
    ~StreamOrder() override = default;

    /// Records what `stream` holds now. kInvalidArgument where it is no stream, or captures a
    /// graph.
    [[nodiscard]] base::Result<void> add(const StreamHandle& stream);
    /// All of it was done when it was recorded.
    [[nodiscard]] bool empty() const { return events_.empty(); }
    /// The error of the driver where an event cannot be asked: the GPU or its context failed.
    [[nodiscard]] base::Result<bool> passed() const override;

private:
    const Driver& driver_;
    std::vector<Event> events_;
    mutable std::atomic<bool> passed_{false};
};

/// The order of a transfer to or from the memory of `devices`, after `streams`; without any, after
/// the default stream of each device. nullptr where all of their work is done by now. To be called
/// by the thread that asks for the transfer: the default stream may be its own.
[[nodiscard]] base::Result<std::shared_ptr<const engine::MoveOrder>> make_order(
    std::span<const StreamHandle> streams, std::span<const engine::MemoryPlace> devices);

/// Whether all that `streams` hold now (none: the default stream of `device`) has passed, by an
/// event of `context`. False also where that cannot be told: what is wrong with a stream is for
/// make_order() to say. By the thread that asks: the default stream may be its own.
[[nodiscard]] bool have_passed(const Driver& driver, std::span<const StreamHandle> streams,
                               std::int32_t device, cuda::CUcontext context, cuda::CUevent event);

/// kInvalidArgument where it is no stream of CUDA's. Where nothing has opened the driver, nothing
/// is asked.
[[nodiscard]] base::Result<void> check_stream(const StreamHandle& stream);

/// Puts what comes on `stream` from here on behind the copies of that direction, to or from the
/// memory of `devices`, that are queued now. A default stream without a device: that of each of
/// them. False where the driver refuses that, and only the host can wait. kInvalidArgument as in
/// StreamOrder::add(). By the thread that asks: the default stream may be its own.
[[nodiscard]] base::Result<bool> hold_up(const StreamHandle& stream,
                                         std::span<const engine::MemoryPlace> devices,
                                         engine::MoveTo to);

}  // namespace penstock::device
