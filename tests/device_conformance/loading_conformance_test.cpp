// SPDX-License-Identifier: Apache-2.0
// Statements on loading, devices, contexts, and processes that fork.
#include "device_conformance/gpu_driver.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

namespace penstock::device::cuda::conformance {
namespace {

STATEMENT(CallsBeforeInitAreRefused, "Initialization, cuInit") {
    EXPECT_EQ(run_before_init("calls"), 0);
}

STATEMENT(VersionAndNamesNeedNoInit, "Version Management, cuDriverGetVersion") {
    EXPECT_EQ(run_before_init("version"), 0);
}

STATEMENT(InitTakesNoFlags, "Initialization, cuInit: \"the Flags parameter must be 0\"") {
    EXPECT_EQ(gpu->cuInit(1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->cuInit(0), CUDA_SUCCESS);
}

STATEMENT(ErrorsHaveNames, "Error Handling, cuGetErrorName and cuGetErrorString") {
    const char* text = nullptr;
    OK(gpu->cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
    OK(gpu->cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    EXPECT_STREQ(text, "out of memory");
}

STATEMENT(UnknownErrorsHaveNone, "Error Handling, cuGetErrorName") {
    const char* text = "before";
    EXPECT_EQ(gpu->cuGetErrorName(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(text, nullptr);
}

STATEMENT(UnknownSymbolsAreNull, "Driver Entry Point Access, cuGetProcAddress") {
    void* found = this;
    CUdriverProcAddressQueryResult status{};
    gpu->cuGetProcAddress("cuNoSuchCall", &found, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                          &status);
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

STATEMENT(SymbolsOfLaterVersionsAreNull, "Driver Entry Point Access, cuGetProcAddress") {
    void* found = this;
    CUdriverProcAddressQueryResult status{};
    gpu->cuGetProcAddress("cuStreamGetId", &found, 11000, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                          &status);
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

STATEMENT(VersionsAfterTheDriversAreRefused, "Driver Entry Point Access, cuGetProcAddress") {
    void* found = nullptr;
    EXPECT_EQ(gpu->cuGetProcAddress("cuMemAlloc", &found, 99990, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                    nullptr),
              CUDA_ERROR_INVALID_VALUE);
}

STATEMENT(DevicesAreNumberedFromZero, "Device Management, cuDeviceGet: [0, count - 1]") {
    int count = 0;
    CUdevice device = -1;
    OK(gpu->cuDeviceGetCount(&count));
    EXPECT_EQ(gpu->cuDeviceGet(&device, count), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(gpu->cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
    OK(gpu->cuDeviceGet(&device, count - 1));
}

STATEMENT(NamesAreCutAndEnded, "Device Management, cuDeviceGetName") {
    std::array<char, 8> name{};
    name.fill('x');
    OK(gpu->cuDeviceGetName(name.data(), 4, 0));
    EXPECT_LT(std::strlen(name.data()), 4U);
    EXPECT_EQ(name[4], 'x');
}

STATEMENT(AddressesAreUnified, "Unified Addressing, \"Supported Platforms\"") {
    int unified = 0;
    OK(gpu->cuDeviceGetAttribute(&unified, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    EXPECT_EQ(unified, 1);
}

STATEMENT(CallsWantAContext, "Context Management, cuCtxSetCurrent") {
    OK(gpu->cuCtxSetCurrent(nullptr));
    CUdeviceptr memory = 0;
    CUstream made = nullptr;
    CUevent recorded = nullptr;
    std::array<char, 64> host{};
    EXPECT_EQ(gpu->cuMemAlloc(&memory, 64), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(gpu->cuStreamCreate(&made, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(gpu->cuEventCreate(&recorded, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(gpu->cuMemHostRegister(host.data(), host.size(), 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(gpu->cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
}

STATEMENT(EachThreadHasItsContext, "Context Management, cuCtxGetCurrent") {
    CUcontext other = context;
    std::thread([&] { gpu->cuCtxGetCurrent(&other); }).join();
    EXPECT_EQ(other, nullptr);
    OK(gpu->cuCtxGetCurrent(&other));
    EXPECT_EQ(other, context);
}

STATEMENT(ContextsAreAStack, "Context Management, cuCtxPushCurrent and cuCtxPopCurrent") {
    CUcontext second = nullptr;
    CUcontext found = nullptr;
    OK(gpu->cuCtxCreate(&second, 0, 0));  // is current now
    OK(gpu->cuCtxPushCurrent(context));
    OK(gpu->cuCtxGetCurrent(&found));
    EXPECT_EQ(found, context);
    OK(gpu->cuCtxPopCurrent(&found));
    EXPECT_EQ(found, context);
    OK(gpu->cuCtxGetCurrent(&found));
    EXPECT_EQ(found, second);
    OK(gpu->cuCtxDestroy(second));
    OK(gpu->cuCtxGetCurrent(&found));
    EXPECT_EQ(found, context);
}

STATEMENT(NothingToPopIsAnError, "Context Management, cuCtxPopCurrent") {
    OK(gpu->cuCtxSetCurrent(nullptr));
    CUcontext found = nullptr;
    EXPECT_EQ(gpu->cuCtxPopCurrent(&found), CUDA_ERROR_INVALID_CONTEXT);
}

STATEMENT(AContextCanBePushedTwice, "Context Management, cuCtxPushCurrent") {
    CUcontext found = nullptr;
    OK(gpu->cuCtxPushCurrent(context));
    OK(gpu->cuCtxPopCurrent(&found));
    OK(gpu->cuCtxGetCurrent(&found));
    EXPECT_EQ(found, context);
}

STATEMENT(PrimaryContextsAreShared, "Primary Context Management, cuDevicePrimaryCtxRetain") {
    CUcontext again = nullptr;
    unsigned flags = 0;
    int active = 0;
    OK(gpu->cuDevicePrimaryCtxRetain(&again, 0));
    EXPECT_EQ(again, context);
    OK(gpu->cuDevicePrimaryCtxRelease(0));
    OK(gpu->cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT_EQ(active, 1);
}

STATEMENT(RetainDoesNotMakeCurrent, "Primary Context Management, cuDevicePrimaryCtxRetain") {
    OK(gpu->cuCtxSetCurrent(nullptr));
    CUcontext again = nullptr;
    CUcontext current = context;
    OK(gpu->cuDevicePrimaryCtxRetain(&again, 0));
    OK(gpu->cuCtxGetCurrent(&current));
    EXPECT_EQ(current, nullptr);
    OK(gpu->cuDevicePrimaryCtxRelease(0));
}

STATEMENT(MemoryGoesWithItsContext, "Context Management, cuCtxDestroy") {
    CUcontext second = nullptr;
    CUdeviceptr memory = 0;
    OK(gpu->cuCtxCreate(&second, 0, 0));
    OK(gpu->cuMemAlloc(&memory, 4 << 20U));
    OK(gpu->cuCtxDestroy(second));
    CUmemorytype type{};
    EXPECT_EQ(gpu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory),
              CUDA_ERROR_INVALID_VALUE);
}

STATEMENT(AChildOfForkHasNoDriver,
          "CUDA C++ Programming Guide, \"Initialization\": no use of CUDA after fork()") {
    const pid_t child = fork();
    if (child == 0) {
        CUdeviceptr memory = 0;
        int count = 0;
        const bool refused = gpu->cuMemAlloc(&memory, 64) == CUDA_ERROR_NOT_INITIALIZED &&
                             gpu->cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                             gpu->cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(gpu->cuCtxSynchronize(), CUDA_SUCCESS);
}

STATEMENT(InitAloneIsEnoughForThat,
          "CUDA C++ Programming Guide, \"Initialization\": no use of CUDA after fork()") {
    EXPECT_EQ(run_before_init("fork"), 0);
}

}  // namespace
}  // namespace penstock::device::cuda::conformance
