// SPDX-License-Identifier: Apache-2.0
// The streams of ours that carry the copies of transfers, over all engines of the process, so that
// a stream of the caller's can be put behind what is queued on them: by an event, which is an order
// that CUDA sees and that waits for nothing but the GPU.
//
// Why nothing waits for copies that are not queued yet: a value in memory that the host writes when
// a transfer is over (cuStreamWaitValue32) ends in a deadlock. A call of any thread that waits for
// the context (cuMemFree, cuMemHostRegister, the load of a kernel) keeps a lock of the driver's
// meanwhile. It waits for that stream, and our next copy waits for the lock.
#pragma once

#include "base/result.hpp"
#include "device/cuda/owned.hpp"
#include "engine/mover.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace penstock::device {

struct CopyStream {
    cuda::CUcontext context = nullptr;
    std::int32_t device = 0;
    engine::MoveTo to = engine::MoveTo::kExtents;  ///< the direction of its copies
    cuda::CUstream stream = nullptr;
};

/// From now on until remove_copy_stream(), which comes before the stream's end. Thread-safe. Throws
/// std::bad_alloc.
void add_copy_stream(const CopyStream& stream);
void remove_copy_stream(cuda::CUstream stream) noexcept;

/// Events on what copy streams hold now. Destroyed with this, after which a stream that was told to
/// wait for them does so still.
class CopyMarks {
public:
    explicit CopyMarks(const Driver& driver) : driver_(driver) {}

    /// Marks the copies of one direction to or from the memory of `devices`. False where the driver
    /// refuses an event.
    [[nodiscard]] bool record(std::span<const engine::MemoryPlace> devices, engine::MoveTo to);
    /// What comes on `stream` from here on waits for them. In the context of the stream.
    [[nodiscard]] cuda::CUresult hold_up(cuda::CUstream stream) const;

private:
    const Driver& driver_;
    std::vector<Event> marks_;
};

}  // namespace penstock::device
