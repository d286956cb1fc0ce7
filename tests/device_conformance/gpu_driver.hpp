// SPDX-License-Identifier: Apache-2.0
// The driver under test: libcuda.so.1, opened at run time, its calls found as programs find them.
// What this folder states holds for the fake driver of tests/fake_gpu, and unchanged for NVIDIA's:
// the program looks in the folder `fake_gpu` next to it first; CONFORMANCE_LIBCUDA names another
// library. The namespace lies in that of the ABI, whose names all of this speaks.
#pragma once

#include "fake_gpu/cuda_more.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

// Calls beyond those of device/cuda/cuda_abi.hpp: CALL(name, version, type).
#define CONFORMANCE_CALLS(CALL)                                                              \
    CALL(cuCtxCreate, 3020, CUresult(CUcontext*, unsigned, CUdevice))                        \
    CALL(cuCtxDestroy, 4000, CUresult(CUcontext))                                            \
    CALL(cuMemHostGetFlags, 2030, CUresult(unsigned*, void*))                                \
    CALL(cuMemcpyDtoD, 3020, CUresult(CUdeviceptr, CUdeviceptr, std::size_t))                \
    CALL(cuMemcpyDtoDAsync, 3020, CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)) \
    CALL(cuMemcpy, 4000, CUresult(CUdeviceptr, CUdeviceptr, std::size_t))                    \
    CALL(cuMemcpyAsync, 4000, CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream))     \
    CALL(cuLaunchHostFunc, 10000, CUresult(CUstream, CUhostFn*, void*))                      \
    CALL(cuStreamGetFlags, 5050, CUresult(CUstream, unsigned*))                              \
    CALL(cuEventElapsedTime, 2000, CUresult(float*, CUevent, CUevent))

namespace penstock::device::cuda::conformance {

/// The library and its calls. get() is null where there is no driver or no device; why_not() says
/// which, and the statements are skipped.
struct Driver {
    void* library = nullptr;
    cuGetProcAddress_type* cuGetProcAddress = nullptr;  // NOLINT: NVIDIA's name
    int version = 0;

#define CONFORMANCE_MEMBER(name, since, ...) \
    std::add_pointer_t<__VA_ARGS__> name = nullptr;  // NOLINT: NVIDIA's name
    PENSTOCK_CUDA_CALLS(CONFORMANCE_MEMBER)
    PENSTOCK_CUDA_OPTIONAL_CALLS(CONFORMANCE_MEMBER)
    PENSTOCK_CUDA_CALLS_OF_TESTS(CONFORMANCE_MEMBER)
    CONFORMANCE_CALLS(CONFORMANCE_MEMBER)
#undef CONFORMANCE_MEMBER

    /// Opened, its calls found, not initialized.
    static Driver* opened();
    /// Opened and initialized, with a device.
    static Driver* get();
    static const char* why_not();
};

/// A statement begins with the primary context of device 0 current, on a thread of its own mind.
class Gpu : public testing::Test {
protected:
    void SetUp() override;
    void TearDown() override;

    /// Device, pinned and registered memory, streams and events that go with the test.
    [[nodiscard]] CUdeviceptr device_memory(std::size_t bytes);
    [[nodiscard]] unsigned char* pinned(std::size_t bytes, int fill = 0);
    [[nodiscard]] CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING);
    [[nodiscard]] CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING);
    /// Reads what the device has there.
    [[nodiscard]] std::vector<unsigned char> bytes_of(CUdeviceptr memory, std::size_t bytes);

    Driver* gpu = nullptr;        // NOLINT: members that tests use have plain names
    CUcontext context = nullptr;  // NOLINT

private:
    std::vector<std::function<void()>> undo_;
};

/// Holds a stream: what is given to it later does not begin before open().
class Gate {
public:
    Gate(Driver& gpu, CUstream stream);
    ~Gate() { open(); }
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;
    void open() { *open_ = true; }

private:
    std::shared_ptr<std::atomic<bool>> open_;
};

/// Runs a program of this file's own in a process that has not initialized the driver.
int run_before_init(const char* name);

}  // namespace penstock::device::cuda::conformance

// A statement on the driver and its source: the section or call of NVIDIA's CUDA Driver API
// reference that says it (13.0 unless it says otherwise).
#define STATEMENT(name, source)           \
    class name : public Gpu {             \
    protected:                            \
        void state();                     \
    };                                    \
    TEST_F(name, Holds) {                 \
        RecordProperty("source", source); \
        state();                          \
    }                                     \
    void name::state()

#define OK(call) ASSERT_EQ(call, CUDA_SUCCESS)
