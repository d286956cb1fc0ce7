// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/owned.hpp"

#include "base/align.hpp"

namespace penstock::device {

using base::fail;
using base::Result;
using namespace cuda;  // NVIDIA's names, as in its documents

CUresult StreamKind::end(const Driver& driver, Handle stream) noexcept {
    return driver.cuStreamDestroy(stream);
}

CUresult EventKind::end(const Driver& driver, Handle event) noexcept {
    return driver.cuEventDestroy(event);
}

CUresult DeviceMemoryKind::end(const Driver& driver, Handle memory) noexcept {
    return driver.cuMemFree(memory);
}

CUresult PinnedKind::end(const Driver& driver, Handle memory) noexcept {
    return driver.cuMemHostUnregister(memory);
}

CallResult Stream::make_in(const Current& current) {
    return make_with(current, "cuStreamCreate", [&](CUstream& made) {
        return current.driver().cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    });
}

CallResult Event::make_in(const Current& current) {
    return make_with(current, "cuEventCreate", [&](CUevent& made) {
        return current.driver().cuEventCreate(&made, CU_EVENT_DISABLE_TIMING);
    });
}

CallResult DeviceMemory::make_in(const Current& current, std::uint64_t bytes) {
    PENSTOCK_ASSERT(bytes != 0);
    return make_with(current, "cuMemAlloc",
                     [&](CUdeviceptr& made) { return current.driver().cuMemAlloc(&made, bytes); });
}

Result<DeviceMemory> DeviceMemory::make(std::int32_t device, std::uint64_t bytes) {
    PENSTOCK_TRY(gpu, gpu_context(device));
    const Current current(gpu);
    DeviceMemory memory;
    if (const CallResult made = memory.make_in(current, bytes); !made.ok()) {
        return fail(gpu_memory_refused(current, made, bytes, device));
    }
    return memory;
}

CallResult PinnedPages::make_in(const Current& current, std::span<std::byte> memory, Pages pages) {
    PENSTOCK_ASSERT(!memory.empty());
    const Driver& driver = current.driver();
    return make_with(current, "cuMemHostRegister", [&](std::byte*& made) {
        const auto pin = [&] {
            return driver.cuMemHostRegister(
                memory.data(), memory.size(),
                CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
        };
        CUresult result = pin();
        if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED && pages == Pages::kNew) {
            for (std::size_t at = 0; at < memory.size(); at += base::kPageBytes) {
                driver.cuMemHostUnregister(memory.data() + at);
            }
            result = pin();
        }
        made = memory.data();
        return result;
    });
}

Result<PinnedPages> PinnedPages::make(std::int32_t device, std::span<std::byte> memory,
                                      Pages pages) {
    PENSTOCK_TRY(gpu, gpu_context(device));
    const Current current(gpu);
    PinnedPages pinned;
    CallResult made = pinned.make_in(current, memory, pages);
    if (made.ok()) {
        CUdeviceptr address = 0;
        made = {gpu.driver->cuMemHostGetDevicePointer(&address, memory.data(), 0),
                "cuMemHostGetDevicePointer"};
        pinned.address_ = address;
    }
    if (!made.ok()) {
        return fail(pinning_refused(current, made, memory.size(), device));
    }
    return pinned;
}

Result<PinnedBlock> PinnedBlock::make(std::int32_t device, std::uint64_t bytes) {
    PinnedBlock made;
    PENSTOCK_TRY(block, memory::Block::make(bytes, {.keep_on_fork = false}));
    made.block_ = std::move(block);
    PENSTOCK_TRY(pages, PinnedPages::make(device, made.block_.bytes(), PinnedPages::Pages::kNew));
    made.pages_ = std::move(pages);
    return made;
}

// Leaves pages that the driver does not give back: a broken GPU may still use them.
PinnedBlock::~PinnedBlock() {
    if (!pages_.end()) {
        block_.leave();
    }
}

void PinnedBlock::leave() noexcept {
    pages_.leave();
    block_.leave();
}

}  // namespace penstock::device
