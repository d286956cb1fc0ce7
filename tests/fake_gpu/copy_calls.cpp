// SPDX-License-Identifier: Apache-2.0
// Calls that copy and fill. What is wrong with addresses is said at the call; bytes move when an
// engine runs the copy. An asynchronous copy of host memory that is not pinned blocks its caller
// until it is through, and is counted.
#include "calls.hpp"
#include "machine.hpp"

#include <algorithm>
#include <cstring>

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
namespace penstock::device::cuda::fake {
namespace {

enum class End : std::uint8_t { kHost, kDevice, kAny };

struct Copy {
    std::uintptr_t to = 0;
    std::uintptr_t from = 0;
    std::size_t bytes = 0;
    End to_end = End::kAny;
    End from_end = End::kAny;
};

/// One end of a copy as the engine has it.
struct Found {
    std::byte* memory = nullptr;
    bool host = false;
    bool pageable = false;
};

bool find(Machine& machine, std::uintptr_t address, std::size_t bytes, End end, Found& found) {
    const Allocation* holder = machine.holder(address);
    const bool host =
        holder == nullptr || holder->kind == Kind::kHostAlloc || holder->kind == Kind::kRegistered;
    if (end == End::kDevice || (end == End::kAny && !host)) {
        found = {machine.on_device(address, bytes), host, false};
        return found.memory != nullptr;
    }
    const auto is = machine.host_memory(address, bytes);
    found = {reinterpret_cast<std::byte*>(address), true, is == Machine::HostMemory::kPageable};
    return is != Machine::HostMemory::kNone && address != 0;
}

struct Planned {
    Piece piece;
    Lane lane = Lane::kOther;
    bool pageable = false;
};

CUresult plan(Machine& machine, const Copy& copy, Planned& planned) {
    Found to;
    Found from;
    if (copy.bytes == 0) {
        return CUDA_SUCCESS;
    }
    if (!find(machine, copy.to, copy.bytes, copy.to_end, to) ||
        !find(machine, copy.from, copy.bytes, copy.from_end, from)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    planned.piece = {to.memory, from.memory, copy.bytes};
    planned.pageable = to.pageable || from.pageable;
    // Registered memory by its device address still lies in the host.
    const bool in = from.host && (!to.host || copy.to_end == End::kDevice);
    const bool out = to.host && (!from.host || copy.from_end == End::kDevice);
    planned.lane = in ? Lane::kIn : (out ? Lane::kOut : Lane::kOther);
    return CUDA_SUCCESS;
}

/// Gives copies to a stream, one entry for each run of one direction, and waits where it must.
CUresult give(Call& call, const std::shared_ptr<Stream>& stream, const std::vector<Planned>& parts,
              bool wait) {
    Machine& machine = call.machine();
    std::uint64_t last = 0;
    std::uint64_t unpinned = 0;
    for (std::size_t i = 0; i < parts.size();) {
        Work work;
        work.lane = parts[i].lane;
        for (; i < parts.size() && parts[i].lane == work.lane; ++i) {
            if (parts[i].piece.bytes > 0) {
                work.pieces.push_back(parts[i].piece);
                work.bytes += parts[i].piece.bytes;
                unpinned += parts[i].pageable ? parts[i].piece.bytes : 0;
            }
        }
        if (work.pieces.empty()) {
            continue;
        }
        if (machine.knobs.seed != 0) {  // a batch has no order
            const std::uint64_t turn = scramble(machine.knobs.seed + machine.next_number);
            std::rotate(
                work.pieces.begin(),
                work.pieces.begin() + static_cast<std::ptrdiff_t>(turn % work.pieces.size()),
                work.pieces.end());
        }
        last = machine.give(*stream, std::move(work));
    }
    if (wait) {
        machine.counters.synchronizations++;
    } else if (unpinned > 0) {
        machine.counters.unpinned_async_copies++;
        machine.counters.unpinned_async_bytes += unpinned;
    }
    if (last != 0 && (wait || unpinned > 0)) {
        machine.wait_for(call.lock(), *stream, last);
        return static_cast<CUresult>(machine.broken.load());
    }
    return CUDA_SUCCESS;
}

CUresult copy_one(Call& call, const Copy& copy, CUstream handle, bool wait) {
    const auto stream = call.stream(handle);
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    std::vector<Planned> parts(1);
    const CUresult bad = plan(call.machine(), copy, parts[0]);
    return bad != CUDA_SUCCESS ? bad : give(call, stream, parts, wait);
}

Copy in(CUdeviceptr to, const void* from, std::size_t bytes) {
    return {to, reinterpret_cast<std::uintptr_t>(from), bytes, End::kDevice, End::kHost};
}

Copy out(void* to, CUdeviceptr from, std::size_t bytes) {
    return {reinterpret_cast<std::uintptr_t>(to), from, bytes, End::kHost, End::kDevice};
}

CUresult copy_2d(Call& call, const CUDA_MEMCPY2D* how, CUstream handle, bool wait) {
    if (how == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto end = [](CUmemorytype type, const void* host, CUdeviceptr device, End& kind) {
        kind = type == CU_MEMORYTYPE_HOST     ? End::kHost
               : type == CU_MEMORYTYPE_DEVICE ? End::kDevice
                                              : End::kAny;
        return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uintptr_t>(host)
                                          : std::uintptr_t{device};
    };
    if (how->srcMemoryType == CU_MEMORYTYPE_ARRAY || how->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    const auto stream = call.stream(handle);
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    Copy row;
    row.bytes = how->WidthInBytes;
    const auto from = end(how->srcMemoryType, how->srcHost, how->srcDevice, row.from_end);
    const auto to = end(how->dstMemoryType, how->dstHost, how->dstDevice, row.to_end);
    std::vector<Planned> parts(how->Height);
    for (std::size_t y = 0; y < how->Height; ++y) {
        row.from = from + (y + how->srcY) * how->srcPitch + how->srcXInBytes;
        row.to = to + (y + how->dstY) * how->dstPitch + how->dstXInBytes;
        const CUresult bad = plan(call.machine(), row, parts[y]);
        if (bad != CUDA_SUCCESS) {
            return bad;
        }
    }
    return give(call, stream, parts, wait);
}

CUresult copy_batch(Call& call, const CUdeviceptr* to, const CUdeviceptr* from,
                    const std::size_t* bytes, std::size_t count,
                    const CUmemcpyAttributes* attributes, const std::size_t* firsts,
                    std::size_t attribute_count, std::size_t* failed, CUstream handle) {
    std::size_t ignored = 0;
    std::size_t& bad_index = failed == nullptr ? ignored : *failed;
    bad_index = SIZE_MAX;
    if (to == nullptr || from == nullptr || bytes == nullptr || count == 0 ||
        attributes == nullptr || firsts == nullptr || attribute_count == 0 ||
        attribute_count > count || firsts[0] != 0 ||
        reinterpret_cast<std::uintptr_t>(handle) <= CU_STREAM_LEGACY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool during_call = false;
    for (std::size_t i = 0; i < attribute_count; ++i) {
        const auto order = attributes[i].srcAccessOrder;
        if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
            firsts[i] >= count || (i > 0 && firsts[i] <= firsts[i - 1])) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        during_call = during_call || order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    }
    const auto stream = call.stream(handle);
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    std::vector<Planned> parts(count);
    for (std::size_t i = 0; i < count; ++i) {
        const CUresult bad = plan(call.machine(), {to[i], from[i], bytes[i]}, parts[i]);
        if (bad != CUDA_SUCCESS || bytes[i] == 0) {
            bad_index = i;
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return give(call, stream, parts, during_call);
}

template <class Value>
CUresult fill(Call& call, CUdeviceptr to, Value value, std::size_t pitch, std::size_t width,
              std::size_t height, CUstream handle) {
    const auto stream = call.stream(handle);
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (width == 0 || height == 0) {
        return CUDA_SUCCESS;
    }
    Machine& machine = call.machine();
    std::byte* memory = machine.on_device(to, (height - 1) * pitch + width * sizeof(Value));
    if (memory == nullptr || to % sizeof(Value) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Work work;
    work.lane = Lane::kOther;
    work.act = [=] {
        for (std::size_t y = 0; y < height; ++y) {
            std::byte* row = memory + y * pitch;
            if constexpr (sizeof(Value) == 1) {
                std::memset(row, value, width);
            } else {
                for (std::size_t x = 0; x < width; ++x) {
                    std::memcpy(row + x * sizeof(Value), &value, sizeof value);
                }
            }
        }
    };
    machine.give(*stream, std::move(work));
    return CUDA_SUCCESS;
}

}  // namespace

FAKE_GPU_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
    FAKE_GPU_CALL(kContext);
    return copy_one(call, in(to, from, bytes), nullptr, true);
}

FAKE_GPU_EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
    FAKE_GPU_CALL(kContext);
    return copy_one(call, out(to, from, bytes), nullptr, true);
}

FAKE_GPU_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    FAKE_GPU_CALL(kContext);
    return copy_one(call, {to, from, bytes, End::kDevice, End::kDevice}, nullptr, true);
}

FAKE_GPU_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    FAKE_GPU_CALL(kContext);
    return copy_one(call, {to, from, bytes}, nullptr, true);
}

FAKE_GPU_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                                              CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return copy_one(call, in(to, from, bytes), stream, false);
}

FAKE_GPU_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes,
                                              CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return copy_one(call, out(to, from, bytes), stream, false);
}

FAKE_GPU_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                              CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return copy_one(call, {to, from, bytes, End::kDevice, End::kDevice}, stream, false);
}

FAKE_GPU_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                       CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return copy_one(call, {to, from, bytes}, stream, false);
}

FAKE_GPU_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext /*to_context*/, CUdeviceptr from,
                                      CUcontext /*from_context*/, std::size_t bytes) {
    FAKE_GPU_CALL(kContext);
    return copy_one(call, {to, from, bytes, End::kDevice, End::kDevice}, nullptr, true);
}

FAKE_GPU_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext /*to_context*/,
                                           CUdeviceptr from, CUcontext /*from_context*/,
                                           std::size_t bytes, CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return copy_one(call, {to, from, bytes, End::kDevice, End::kDevice}, stream, false);
}

FAKE_GPU_EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* how) {
    FAKE_GPU_CALL(kContext);
    return copy_2d(call, how, nullptr, true);
}

FAKE_GPU_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* how) {
    FAKE_GPU_CALL(kContext);
    return copy_2d(call, how, nullptr, true);
}

FAKE_GPU_EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* how, CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return copy_2d(call, how, stream, false);
}

/// As CUDA 12.8 has it.
FAKE_GPU_EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                                            std::size_t count, CUmemcpyAttributes* attributes,
                                            std::size_t* firsts, std::size_t attribute_count,
                                            std::size_t* failed, CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return copy_batch(call, to, from, bytes, count, attributes, firsts, attribute_count, failed,
                      stream);
}

/// As CUDA 13.0 has it.
FAKE_GPU_EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from,
                                               std::size_t* bytes, std::size_t count,
                                               CUmemcpyAttributes* attributes, std::size_t* firsts,
                                               std::size_t attribute_count, CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return copy_batch(call, to, from, bytes, count, attributes, firsts, attribute_count, nullptr,
                      stream);
}

FAKE_GPU_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t count) {
    FAKE_GPU_CALL(kContext);
    return fill(call, to, value, 0, count, 1, nullptr);
}

FAKE_GPU_EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, std::size_t count) {
    FAKE_GPU_CALL(kContext);
    return fill(call, to, value, 0, count, 1, nullptr);
}

FAKE_GPU_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, std::size_t count) {
    FAKE_GPU_CALL(kContext);
    return fill(call, to, value, 0, count, 1, nullptr);
}

FAKE_GPU_EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr to, std::size_t pitch, unsigned char value,
                                         std::size_t width, std::size_t height) {
    FAKE_GPU_CALL(kContext);
    return fill(call, to, value, pitch, width, height, nullptr);
}

FAKE_GPU_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count,
                                         CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return fill(call, to, value, 0, count, 1, stream);
}

FAKE_GPU_EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count,
                                          CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return fill(call, to, value, 0, count, 1, stream);
}

FAKE_GPU_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count,
                                          CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return fill(call, to, value, 0, count, 1, stream);
}

FAKE_GPU_EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch, unsigned char value,
                                           std::size_t width, std::size_t height, CUstream stream) {
    FAKE_GPU_CALL(kContext);
    return fill(call, to, value, pitch, width, height, stream);
}

}  // namespace penstock::device::cuda::fake
// NOLINTEND(readability-identifier-naming)
