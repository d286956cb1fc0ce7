// SPDX-License-Identifier: Apache-2.0
// Calls about the driver, devices and contexts.
#include "calls.hpp"
#include "machine.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
namespace penstock::device::cuda::fake {
namespace {

struct Name {
    CUresult code;
    const char* name;
    const char* text;
};

constexpr std::array kNames{
    Name{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    Name{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    Name{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    Name{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    Name{CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    Name{CUDA_ERROR_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    Name{CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
         "CUDA-capable device(s) is/are busy or unavailable"},
    Name{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    Name{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    Name{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    Name{CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
         "uncorrectable ECC error encountered"},
    Name{CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
         "OS call failed or operation not supported on this OS"},
    Name{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    Name{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    Name{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    Name{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
         "an illegal memory access was encountered"},
    Name{CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
         "peer access is already enabled"},
    Name{CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
         "peer access has not been enabled"},
    Name{CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
         "cannot set while device is active in this process"},
    Name{CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED",
         "context is destroyed"},
    Name{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
         "part or all of the requested memory range is already mapped"},
    Name{CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
         "pointer does not correspond to a registered memory region"},
    Name{CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    Name{CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    Name{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    Name{CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    Name{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
         "system has unsupported display driver / cuda driver combination"},
    Name{CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
         "forward compatibility was attempted on non supported HW"},
    Name{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
         "operation not permitted when stream is capturing"},
    Name{CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
         "operation would make the legacy stream depend on a capturing blocking stream"},
    Name{CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
         "operation not permitted on an event last recorded in a capturing stream"},
    Name{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Name* name_of(CUresult code) {
    const auto* const found =
        std::find_if(kNames.begin(), kNames.end(), [&](const Name& n) { return n.code == code; });
    return found == kNames.end() ? nullptr : found;
}

bool is_device(const Machine& machine, CUdevice device) {
    return device >= 0 && device < static_cast<int>(machine.devices.size());
}

Device& gpu(Machine& machine, CUdevice device) {
    return machine.devices[static_cast<std::size_t>(device)];
}

std::shared_ptr<Context> make_context(Machine& machine, CUdevice device, unsigned flags,
                                      bool primary) {
    auto made = std::make_shared<Context>();
    made->device = device;
    made->primary = primary;
    made->flags = flags;
    made->handle = machine.new_handle();
    made->number = machine.next_number++;
    machine.contexts[made->handle] = made;
    machine.start_engines(device);
    return made;
}

/// All that was made in a context goes with it, after its work.
void destroy(Call& call, const std::shared_ptr<Context>& context) {
    Machine& machine = call.machine();
    machine.contexts.erase(context->handle);
    context->destroyed = true;
    machine.wait_for_device(call.lock(), context->device);
    std::vector<std::uintptr_t> mine;
    for (const auto& [base, item] : machine.memory) {
        if (item.context == context) {
            mine.push_back(base);
        }
    }
    for (const std::uintptr_t base : mine) {
        machine.release(base);
    }
    const auto of_it = [&](const auto& entry) { return entry.second->context == context; };
    machine.counters.streams_now -= std::erase_if(machine.streams, of_it);
    machine.counters.events_now -= std::erase_if(machine.events, of_it);
    context->legacy = nullptr;
    context->per_thread.clear();
    machine.advance();
}

CUcontext handle_of(const std::shared_ptr<Context>& context) {
    return context == nullptr ? nullptr : reinterpret_cast<CUcontext>(context->handle);
}

int attribute_of(const Machine& machine, unsigned which, CUdevice device) {
    switch (which) {
        case 1:
            return 1024;  // threads of a block
        case 2:
        case 3:
            return 1024;  // its extents
        case 4:
            return 64;
        case 5:
            return 2147483647;  // extents of a grid
        case 6:
        case 7:
            return 65535;
        case 8:
            return 49152;  // shared memory of a block
        case 10:
            return 32;  // warp
        case 13:
            return 1980000;  // clock, kHz
        case 14:
            return 512;  // texture alignment
        case 16:
            return 132;  // multiprocessors
        case 19:
            return 1;  // can map host memory
        case 31:
            return 1;  // concurrent kernels
        case 32:
            return 1;  // ECC
        case 33:
            return 0x10 + device;  // PCI bus
        case 34:
        case 50:
            return 0;  // PCI device, domain
        case 36:
            return 2619000;  // memory clock, kHz
        case 37:
            return 6144;  // memory bus, bits
        case 38:
            return 62914560;  // L2 cache
        case 39:
            return 2048;  // threads of a multiprocessor
        case 40:
            return 2;  // copy engines
        case 41:
            return 1;  // unified addressing
        case 75:
            return 9;  // compute capability
        case 76:
            return 0;
        case 78:
            return 1;  // stream priorities
        case 83:
            return 1;  // managed memory
        case 88:
            return 0;  // pageable memory access
        case 89:
            return 1;  // concurrent managed access
        case 91:
            return 1;  // host pointer for registered memory
        case 99:
            return 1;  // can register host memory
        case 113:
            return 0;  // read-only registration
        case 115:
            return machine.settings.driver_version >= 11020 ? 1 : 0;  // memory pools
        case 134:
            return 0;  // NUMA node of the host
        default:
            return 0;
    }
}

}  // namespace

FAKE_GPU_EXPORT CUresult cuInit(unsigned int flags) {
    FAKE_GPU_CALL(kNothing);
    if (machine.settings.stub) {
        return CUDA_ERROR_STUB_LIBRARY;
    }
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (machine.devices.empty()) {
        return CUDA_ERROR_NO_DEVICE;
    }
    machine.initialized = true;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDriverGetVersion(int* version) {
    FAKE_GPU_CALL(kNothing);
    if (version == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = machine.settings.driver_version;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
    const Name* found = name_of(error);
    if (text == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *text = found == nullptr ? nullptr : found->name;
    return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
    const Name* found = name_of(error);
    if (text == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *text = found == nullptr ? nullptr : found->text;
    return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceGetCount(int* count) {
    FAKE_GPU_CALL(kInit);
    if (count == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = static_cast<int>(machine.devices.size());
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    FAKE_GPU_CALL(kInit);
    if (device == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(machine, ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
    FAKE_GPU_CALL(kInit);
    if (name == nullptr || bytes <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    std::snprintf(name, static_cast<std::size_t>(bytes), "Penstock fake GPU %d", device);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
    FAKE_GPU_CALL(kInit);
    if (bytes == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *bytes = machine.settings.memory_bytes;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which,
                                              CUdevice device) {
    FAKE_GPU_CALL(kInit);
    if (value == nullptr || which == 0 || which > CU_DEVICE_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *value = attribute_of(machine, which, device);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) {
    FAKE_GPU_CALL(kInit);
    if (text == nullptr || bytes <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", 0x10 + device);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
    FAKE_GPU_CALL(kInit);
    unsigned domain = 0;
    unsigned bus = 0;
    if (device == nullptr || text == nullptr || std::sscanf(text, "%x:%x", &domain, &bus) != 2) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const int number = static_cast<int>(bus) - 0x10;
    if (domain != 0 || !is_device(machine, number)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = number;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    FAKE_GPU_CALL(kInit);
    if (uuid == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    std::memcpy(uuid->bytes, "penstock-fake-0", sizeof uuid->bytes);
    uuid->bytes[15] = static_cast<char>(device);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

FAKE_GPU_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    FAKE_GPU_CALL(kInit);
    if (can == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(machine, device) || !is_device(machine, peer)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *can = 0;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    FAKE_GPU_CALL(kInit);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    Device& of = gpu(machine, device);
    if (of.primary == nullptr) {
        of.primary = make_context(machine, device, of.primary_flags, true);
    }
    of.retained++;
    machine.counters.retained_now++;
    *context = handle_of(of.primary);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    FAKE_GPU_CALL(kInit);
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    Device& of = gpu(machine, device);
    if (of.retained == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    machine.counters.retained_now--;
    if (--of.retained == 0 && of.primary != nullptr) {
        destroy(call, std::exchange(of.primary, nullptr));
    }
    return CUDA_SUCCESS;
}

/// The retains stay; the next one makes the context again.
FAKE_GPU_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    FAKE_GPU_CALL(kInit);
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (gpu(machine, device).primary != nullptr) {
        destroy(call, std::exchange(gpu(machine, device).primary, nullptr));
    }
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    FAKE_GPU_CALL(kInit);
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (flags == nullptr || active == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = gpu(machine, device).primary_flags;
    *active = gpu(machine, device).primary != nullptr ? 1 : 0;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    FAKE_GPU_CALL(kInit);
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    gpu(machine, device).primary_flags = flags;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    FAKE_GPU_CALL(kInit);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(machine, device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    const auto made = make_context(machine, device, flags, false);
    context_stack().push_back(made->handle);
    *context = handle_of(made);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxCreate_v3(CUcontext* context, void* affinity, int count,
                                        unsigned flags, CUdevice device) {
    return affinity != nullptr && count > 0 ? CUDA_ERROR_NOT_SUPPORTED
                                            : cuCtxCreate_v2(context, flags, device);
}

FAKE_GPU_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, void* /*parameters*/, unsigned flags,
                                        CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}

FAKE_GPU_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    FAKE_GPU_CALL(kInit);
    const auto found = machine.contexts.find(reinterpret_cast<std::uintptr_t>(context));
    if (found == machine.contexts.end()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (found->second->primary) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    auto& stack = context_stack();
    if (!stack.empty() && stack.back() == found->first) {
        stack.pop_back();
    }
    destroy(call, std::shared_ptr<Context>(found->second));
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    FAKE_GPU_CALL(kInit);
    const auto handle = reinterpret_cast<std::uintptr_t>(context);
    if (machine.contexts.find(handle) == machine.contexts.end()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    context_stack().push_back(handle);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    FAKE_GPU_CALL(kInit);
    auto& stack = context_stack();
    if (stack.empty()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (context != nullptr) {
        *context = reinterpret_cast<CUcontext>(stack.back());
    }
    stack.pop_back();
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    FAKE_GPU_CALL(kInit);
    const auto handle = reinterpret_cast<std::uintptr_t>(context);
    auto& stack = context_stack();
    if (handle != 0 && machine.contexts.find(handle) == machine.contexts.end()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!stack.empty()) {
        stack.pop_back();
    }
    if (handle != 0) {
        stack.push_back(handle);
    }
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
    FAKE_GPU_CALL(kInit);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto& stack = context_stack();
    *context = stack.empty() ? nullptr : reinterpret_cast<CUcontext>(stack.back());
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    FAKE_GPU_CALL(kContext);
    if (device == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = call.context()->device;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxGetFlags(unsigned* flags) {
    FAKE_GPU_CALL(kContext);
    if (flags == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = call.context()->flags;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
    FAKE_GPU_CALL(kInit);
    const auto found = machine.contexts.find(reinterpret_cast<std::uintptr_t>(context));
    const auto& of = context == nullptr
                         ? call.context()
                         : (found == machine.contexts.end() ? nullptr : found->second);
    if (of == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (id == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *id = of->number;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxGetApiVersion(CUcontext /*context*/, unsigned* version) {
    FAKE_GPU_CALL(kInit);
    if (version == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = 3020;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    FAKE_GPU_CALL(kContext);
    if (least != nullptr) {
        *least = 0;
    }
    if (greatest != nullptr) {
        *greatest = -5;
    }
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxGetLimit(std::size_t* value, unsigned /*limit*/) {
    FAKE_GPU_CALL(kContext);
    if (value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = 0;
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxSetLimit(unsigned /*limit*/, std::size_t /*value*/) {
    FAKE_GPU_CALL(kContext);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuCtxSynchronize() {
    FAKE_GPU_CALL(kContext);
    machine.counters.synchronizations++;
    machine.wait_for_device(call.lock(), call.context()->device);
    return static_cast<CUresult>(machine.broken.load());
}

}  // namespace penstock::device::cuda::fake
// NOLINTEND(readability-identifier-naming)
