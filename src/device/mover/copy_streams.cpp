// SPDX-License-Identifier: Apache-2.0
#include "device/mover/copy_streams.hpp"

#include "base/assert.hpp"
#include "base/of_process.hpp"
#include "device/cuda/context.hpp"

#include <algorithm>
#include <memory>
#include <mutex>

namespace penstock::device {

using namespace cuda;  // NVIDIA's names, as in its documents

namespace {

/// A fork leaves the mutex as it was, and the streams to the parent.
struct CopyStreams {
    std::mutex mutex;
    std::vector<CopyStream> all;
};

CopyStreams& copy_streams() {
    // Never destroyed: engines end while the process does.
    static auto& of_process =
        *new base::OfProcess<CopyStreams>([] { return std::make_shared<CopyStreams>(); });
    return *of_process;
}

}  // namespace

void add_copy_stream(const CopyStream& stream) {
    PENSTOCK_ASSERT(stream.stream != nullptr && stream.context != nullptr);
    CopyStreams& streams = copy_streams();
    const std::lock_guard lock(streams.mutex);
    streams.all.push_back(stream);
}

void remove_copy_stream(CUstream stream) noexcept {
    CopyStreams& streams = copy_streams();
    const std::lock_guard lock(streams.mutex);
    auto& all = streams.all;
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const CopyStream& one) { return one.stream == stream; }),
              all.end());
}

// Under the mutex, so that no stream ends meanwhile. No call here waits for the GPU.
bool CopyMarks::record(std::span<const engine::MemoryPlace> devices, engine::MoveTo to) {
    CopyStreams& streams = copy_streams();
    const std::lock_guard lock(streams.mutex);
    marks_.reserve(marks_.size() + streams.all.size());
    for (const CopyStream& one : streams.all) {
        const bool meant =
            one.to == to &&
            std::any_of(devices.begin(), devices.end(), [&](const engine::MemoryPlace& place) {
                return place.kind == MemoryKind::kDevice && place.device == one.device;
            });
        if (!meant) {
            continue;
        }
        const Current current(driver_, one.context);
        if (!marks_.emplace_back().make_in(current).ok() ||
            driver_.cuEventRecord(marks_.back().get(), one.stream) != CUDA_SUCCESS) {
            return false;
        }
    }
    return true;
}

CUresult CopyMarks::hold_up(CUstream stream) const {
    for (const Event& mark : marks_) {
        const CUresult result =
            driver_.cuStreamWaitEvent(stream, mark.get(), CU_EVENT_WAIT_DEFAULT);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace penstock::device
