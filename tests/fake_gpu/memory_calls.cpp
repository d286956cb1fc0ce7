// SPDX-License-Identifier: Apache-2.0
// Calls about memory: device, managed, pinned, registered, pools; and what a pointer is.
#include "calls.hpp"
#include "machine.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
namespace penstock::device::cuda::fake {
namespace {

constexpr std::size_t kPage = 4096;

/// Are all pages of this range mapped in this process?
bool is_mapped(std::uintptr_t begin, std::size_t bytes) {
    const std::uintptr_t first = begin / kPage * kPage;
    const std::size_t pages = (begin + bytes - first + kPage - 1) / kPage;
    std::vector<unsigned char> resident(pages);
    return mincore(reinterpret_cast<void*>(first), pages * kPage, resident.data()) == 0;
}

CUmemoryPool pool_of(int device) {
    return reinterpret_cast<CUmemoryPool>(0x5FA6'E0F0'0000'0000U + (std::uintptr_t(device) << 4U));
}

CUresult free_now(Call& call, std::uintptr_t base, Kind kind, Kind other) {
    Machine& machine = call.machine();
    const Allocation* found = machine.holder(base);
    if (found == nullptr || found->base != base || (found->kind != kind && found->kind != other)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    machine.counters.frees_that_waited++;
    machine.wait_for_device(call.lock(), -1);
    machine.release(base);
    return CUDA_SUCCESS;
}

CUresult host_alloc(Call& call, void** memory, std::size_t bytes, unsigned flags) {
    if (memory == nullptr || bytes == 0 || flags > 7) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Allocation* made = nullptr;
    const CUresult bad =
        call.machine().allocate(Kind::kHostAlloc, call.context(), bytes, flags, &made);
    if (bad == CUDA_SUCCESS) {
        *memory = reinterpret_cast<void*>(made->base);
    }
    return bad;
}

CUresult device_alloc(Call& call, CUdeviceptr* memory, std::size_t bytes, bool of_pool) {
    if (memory == nullptr || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Allocation* made = nullptr;
    const CUresult bad = call.machine().allocate(Kind::kDevice, call.context(), bytes, 0, &made);
    if (bad == CUDA_SUCCESS) {
        made->of_pool = of_pool;
        *memory = made->base;
    }
    return bad;
}

template <class Value>
void put(void* place, Value value) {
    std::memcpy(place, &value, sizeof value);
}

/// Writes one attribute of a pointer; of one that is no CUDA pointer (`item` null) its null value
/// (but nothing of the range, as driver 580 does), and says CUDA_ERROR_INVALID_VALUE.
CUresult attribute(const Call& call, unsigned which, const Allocation* item, CUdeviceptr pointer,
                   void* place) {
    const CUresult found = item == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    const bool device = item != nullptr && item->kind == Kind::kDevice;
    const bool managed = item != nullptr && item->kind == Kind::kManaged;
    switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            put(place, item == nullptr ? std::uintptr_t{0} : item->context->handle);
            return found;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            put(place, item == nullptr     ? CUmemorytype{}
                       : device || managed ? CU_MEMORYTYPE_DEVICE
                                           : CU_MEMORYTYPE_HOST);
            return found;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            if (item != nullptr && call.context() == nullptr) {
                return CUDA_ERROR_INVALID_CONTEXT;
            }
            put<CUdeviceptr>(place, item == nullptr ? 0 : pointer);
            return found;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            put<CUdeviceptr>(place, item == nullptr || device ? 0 : pointer);
            return device ? CUDA_ERROR_INVALID_VALUE : found;
        case kPointerSyncMemops:
            put<unsigned>(place, item != nullptr && item->sync_memops ? 1 : 0);
            return found;
        case kPointerBufferId:
        case kPointerBlockId:
            put<std::uint64_t>(place, item == nullptr ? 0 : item->number);
            return found;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            put<unsigned>(place, managed ? 1 : 0);
            return found;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            put<int>(place, item == nullptr ? -2 : item->device);
            return found;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case kPointerMappingBase:
            if (item != nullptr) {
                put<CUdeviceptr>(place, item->base);
            }
            return found;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        case kPointerMappingSize:
            if (item != nullptr) {
                put<std::size_t>(place, item->bytes);
            }
            return found;
        case CU_POINTER_ATTRIBUTE_MAPPED:
            put<unsigned>(place, item == nullptr ? 0 : 1);
            return found;
        case kPointerIpcCapable:
        case kPointerDirectRdma:
            put<unsigned>(place, 0);
            return found;
        case kPointerAllowedHandleTypes:
            put<std::uint64_t>(place, 0);
            return found;
        case kPointerAccessFlags:
            put<unsigned>(place, item == nullptr ? 0 : 3);
            return found;
        case kPointerMempool:
            put(place, item != nullptr && item->of_pool ? pool_of(item->device) : nullptr);
            return found;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

constexpr unsigned kAttributeMax = kPointerBlockId;

}  // namespace

FAKE_GPU_EXPORT CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    FAKE_GPU_CALL(kContext);
    if (free == nullptr || total == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto& device = machine.devices[static_cast<std::size_t>(call.context()->device)];
    *total = machine.settings.memory_bytes;
    *free = machine.settings.memory_bytes - device.used_bytes;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* memory, std::size_t bytes) {
    FAKE_GPU_CALL(kContext);
    return device_alloc(call, memory, bytes, false);
}

FAKE_GPU_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* memory, std::size_t* pitch,
                                            std::size_t width, std::size_t height,
                                            unsigned /*element*/) {
    FAKE_GPU_CALL(kContext);
    if (pitch == nullptr || width == 0 || height == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pitch = (width + 511) / 512 * 512;
    return device_alloc(call, memory, *pitch * height, false);
}

/// Waits for all work, as the driver's does in practice.
FAKE_GPU_EXPORT CUresult cuMemFree_v2(CUdeviceptr memory) {
    FAKE_GPU_CALL(kContext);
    return memory == 0 ? CUDA_SUCCESS : free_now(call, memory, Kind::kDevice, Kind::kManaged);
}

FAKE_GPU_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* memory, std::size_t bytes, unsigned flags) {
    FAKE_GPU_CALL(kContext);
    if (memory == nullptr || bytes == 0 ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Allocation* made = nullptr;
    const CUresult bad = machine.allocate(Kind::kManaged, call.context(), bytes, flags, &made);
    if (bad == CUDA_SUCCESS) {
        *memory = made->base;
    }
    return bad;
}

FAKE_GPU_EXPORT CUresult cuMemAllocHost_v2(void** memory, std::size_t bytes) {
    FAKE_GPU_CALL(kContext);
    return host_alloc(call, memory, bytes, 0);
}

FAKE_GPU_EXPORT CUresult cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
    FAKE_GPU_CALL(kContext);
    return host_alloc(call, memory, bytes, flags);
}

FAKE_GPU_EXPORT CUresult cuMemFreeHost(void* memory) {
    FAKE_GPU_CALL(kContext);
    return free_now(call, reinterpret_cast<std::uintptr_t>(memory), Kind::kHostAlloc,
                    Kind::kHostAlloc);
}

FAKE_GPU_EXPORT CUresult cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
    FAKE_GPU_CALL(kContext);
    const auto base = reinterpret_cast<std::uintptr_t>(memory);
    if (memory == nullptr || bytes == 0 || flags > 15) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & (CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    const auto is = machine.host_memory(base, bytes);
    if (is != Machine::HostMemory::kPageable) {
        const Allocation* holder = machine.holder(base);
        return holder != nullptr && holder->kind == Kind::kDevice
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    if (!is_mapped(base, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Allocation item;
    item.kind = Kind::kRegistered;
    item.context = call.context();
    item.device = item.context->device;
    item.number = machine.next_number++;
    item.base = base;
    item.bytes = bytes;
    item.backing = static_cast<std::byte*>(memory);
    item.flags = flags;
    machine.memory.emplace(base, item);
    machine.counters.pinned_bytes_now += bytes;
    machine.counters.pinned_bytes_max =
        std::max(machine.counters.pinned_bytes_max, machine.counters.pinned_bytes_now);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuMemHostUnregister(void* memory) {
    FAKE_GPU_CALL(kContext);
    const CUresult bad = free_now(call, reinterpret_cast<std::uintptr_t>(memory), Kind::kRegistered,
                                  Kind::kRegistered);
    return bad == CUDA_ERROR_INVALID_VALUE && memory != nullptr
               ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
               : bad;
}

FAKE_GPU_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* memory,
                                                      unsigned flags) {
    FAKE_GPU_CALL(kContext);
    const Allocation* found = machine.holder(reinterpret_cast<std::uintptr_t>(memory));
    if (device == nullptr || flags != 0 || found == nullptr || found->kind == Kind::kDevice) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = reinterpret_cast<std::uintptr_t>(memory);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuMemHostGetFlags(unsigned* flags, void* memory) {
    FAKE_GPU_CALL(kContext);
    const Allocation* found = machine.holder(reinterpret_cast<std::uintptr_t>(memory));
    if (flags == nullptr || found == nullptr || found->kind == Kind::kDevice ||
        found->kind == Kind::kManaged) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = found->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes,
                                                 CUdeviceptr inside) {
    FAKE_GPU_CALL(kContext);
    const Allocation* found = machine.holder(inside);
    if (found == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != nullptr) {
        *base = found->base;
    }
    if (bytes != nullptr) {
        *bytes = found->bytes;
    }
    return CUDA_SUCCESS;
}

/// The memory is there at once, which a program must not rely on before the stream is there.
FAKE_GPU_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* memory, std::size_t bytes, CUstream stream) {
    FAKE_GPU_CALL(kContext);
    if (call.stream(stream) == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return device_alloc(call, memory, bytes, true);
}

FAKE_GPU_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* memory, std::size_t bytes,
                                                 CUmemoryPool pool, CUstream stream) {
    return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : cuMemAllocAsync(memory, bytes, stream);
}

FAKE_GPU_EXPORT CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream handle) {
    FAKE_GPU_CALL(kContext);
    const auto stream = call.stream(handle);
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const Allocation* found = machine.holder(memory);
    if (found == nullptr || found->base != memory || found->kind != Kind::kDevice) {
        return memory == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    Work work;
    work.lane = Lane::kOther;
    work.act = [memory] {
        Machine& all = Machine::get();
        const std::lock_guard lock(all.mutex);
        all.release(memory);
    };
    machine.give(*stream, std::move(work));
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    FAKE_GPU_CALL(kInit);
    if (pool == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device < 0 || device >= static_cast<int>(machine.devices.size())) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *pool = pool_of(device);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}

FAKE_GPU_EXPORT CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which,
                                               CUdeviceptr pointer) {
    FAKE_GPU_CALL(kInit);
    const Allocation* item = machine.holder(pointer);
    if (value == nullptr || item == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return attribute(call, which, item, pointer, value);
}

/// No error for a pointer that CUDA does not know: null values.
FAKE_GPU_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* which,
                                                void** values, CUdeviceptr pointer) {
    FAKE_GPU_CALL(kInit);
    if (count == 0 || which == nullptr || values == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Allocation* item = machine.holder(pointer);
    for (unsigned i = 0; i < count; ++i) {
        if (values[i] == nullptr || which[i] == 0 || which[i] > kAttributeMax) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        attribute(call, which[i], item, pointer, values[i]);
    }
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuPointerSetAttribute(const void* value, unsigned which,
                                               CUdeviceptr pointer) {
    FAKE_GPU_CALL(kInit);
    Allocation* item = machine.holder(pointer);
    if (value == nullptr || item == nullptr || which != kPointerSyncMemops) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned on = 0;
    std::memcpy(&on, value, sizeof on);
    item->sync_memops = on != 0;
    return CUDA_SUCCESS;
}

}  // namespace penstock::device::cuda::fake
// NOLINTEND(readability-identifier-naming)
