// SPDX-License-Identifier: Apache-2.0
// What a transfer begins after: the work that streams of the caller held when he asked. An event is
// recorded on each at the call; the copies wait for it on the GPU, no thread does.
#pragma once

#include "base/result.hpp"
#include "device/driver.hpp"
#include "engine/mover.hpp"

#include <penstock/gpu.hpp>

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
    ~StreamOrder() override;

    /// Records what `stream` holds now. kInvalidArgument where it is no stream, or captures a
    /// graph.
    [[nodiscard]] base::Result<void> add(const StreamHandle& stream);
    /// Makes `stream` wait for all that was recorded, on the GPU. Its context is current.
    [[nodiscard]] cuda::CUresult hold(cuda::CUstream stream) const;
    /// No event is left to wait for.
    [[nodiscard]] bool passed() const { return events_.empty(); }
    /// Never given twice in a process.
    [[nodiscard]] std::uint64_t number() const { return number_; }

private:
    struct Recorded {
        cuda::CUcontext context = nullptr;
        cuda::CUevent event = nullptr;
    };
    void destroy(const Recorded& recorded) const;

    const Driver& driver_;
    std::uint64_t number_;
    std::vector<Recorded> events_;
};

/// The order of a transfer to or from the memory of `devices`, after `streams`; without any, after
/// the default stream of each device. nullptr where all of their work is done by now. To be called
/// by the thread that asks for the transfer: the default stream may be its own.
[[nodiscard]] base::Result<std::shared_ptr<const engine::MoveOrder>> make_order(
    std::span<const StreamHandle> streams, std::span<const engine::MemoryPlace> devices);

}  // namespace penstock::device
