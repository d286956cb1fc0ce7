// SPDX-License-Identifier: Apache-2.0
// Modules and kernels. The kernel is one of Penstock's, as it is kept: it copies rows from one
// address to another.
#include "device_conformance/gpu_driver.hpp"
#include "kernels/copy_rows.hpp"
#include "kernels/kept_ptx.hpp"

#include <cstring>
#include <string>

namespace penstock::device::cuda::conformance {
namespace {

using kernels::RowCopy;

constexpr const char* kName = "penstock_copy_rows";

std::string ptx() {
    return kernels::kept_ptx("copy_rows");
}

// The PTX with another word where `key` is.
std::string ptx_with(const std::string& key, const std::string& word) {
    std::string text = ptx();
    const std::size_t begin = text.find("\n" + key) + 1;
    return text.replace(begin, text.find('\n', begin) - begin, key + " " + word);
}

class Kernel : public Gpu {
protected:
    void SetUp() override {
        Gpu::SetUp();
        if (IsSkipped()) {
            return;
        }
        OK(gpu->cuModuleLoadData(&module, ptx().c_str()));
        OK(gpu->cuModuleGetFunction(&function, module, kName));
    }
    void TearDown() override {
        if (module != nullptr) {
            gpu->cuCtxSynchronize();
            gpu->cuModuleUnload(module);
        }
        Gpu::TearDown();
    }
    CUresult launch(RowCopy* rows, std::uint64_t count, CUstream stream, unsigned blocks = 1,
                    unsigned threads = kernels::kBlock) {
        auto list = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(rows));
        void* parameters[] = {&list, &count};
        const CUresult result = gpu->cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0,
                                                    stream, parameters, nullptr);
        list = 0;  // parameters are read by the call
        count = 0;
        return result;
    }
    // A list that the GPU can read, with one row in it.
    RowCopy* list(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
        auto* made = reinterpret_cast<RowCopy*>(pinned(sizeof(RowCopy)));
        *made = {from, to, bytes};
        return made;
    }

    CUmodule module = nullptr;      // NOLINT: members that tests use have plain names
    CUfunction function = nullptr;  // NOLINT
};

std::uint64_t address(const void* memory) {
    return reinterpret_cast<std::uintptr_t>(memory);
}

#define KERNEL_STATEMENT(name, source)    \
    class name : public Kernel {          \
    protected:                            \
        void state();                     \
    };                                    \
    TEST_F(name, Holds) {                 \
        RecordProperty("source", source); \
        state();                          \
    }                                     \
    void name::state()

KERNEL_STATEMENT(AModuleOfPtxHasItsKernelsByName, "cuModuleGetFunction: CUDA_ERROR_NOT_FOUND") {
    CUfunction found = nullptr;
    OK(gpu->cuModuleGetFunction(&found, module, kName));
    EXPECT_NE(found, nullptr);
    EXPECT_EQ(gpu->cuModuleGetFunction(&found, module, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
}

STATEMENT(AnImageThatIsNoneIsRefused, "cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE, _INVALID_PTX") {
    CUmodule module = nullptr;
    EXPECT_THAT(gpu->cuModuleLoadData(&module, "no module at all\n"),
                testing::AnyOf(CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX));
}

STATEMENT(PtxOfALaterVersionIsRefused, "cuModuleLoadData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION") {
    CUmodule module = nullptr;
    EXPECT_EQ(gpu->cuModuleLoadData(&module, ptx_with(".version", "99.9").c_str()),
              CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

STATEMENT(PtxOfALaterGpuIsRefused, "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU, _INVALID_PTX") {
    CUmodule module = nullptr;
    EXPECT_THAT(gpu->cuModuleLoadData(&module, ptx_with(".target", "sm_990").c_str()),
                testing::AnyOf(CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_INVALID_PTX));
}

KERNEL_STATEMENT(AKernelRunsInTheOrderOfItsStream,
                 "CUDA C++ Programming Guide, Streams: commands of a stream execute in order") {
    const CUdeviceptr from = device_memory(256);
    const CUdeviceptr to = device_memory(256);
    const CUstream own = stream();
    RowCopy* const row = list(from, to, 256);
    unsigned char* const after = pinned(256);
    const CUevent done = event();
    // Not behind the gate: the first launch loads the kernel, pinned memory is allocated, and a
    // synchronous copy waits for callbacks of the host, too.
    OK(launch(row, 1, own));
    OK(gpu->cuMemsetD8Async(to, 1, 256, own));
    OK(gpu->cuStreamSynchronize(own));
    Gate gate(*gpu, own);
    OK(gpu->cuMemsetD8Async(from, 7, 256, own));
    OK(launch(row, 1, own));
    OK(gpu->cuMemcpyDtoHAsync(after, to, 256, own));
    OK(gpu->cuEventRecord(done, own));
    EXPECT_EQ(gpu->cuEventQuery(done), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(after[0], 0);
    gate.open();
    OK(gpu->cuEventSynchronize(done));
    EXPECT_EQ(after[0], 7);
    EXPECT_EQ(after[255], 7);
}

KERNEL_STATEMENT(AKernelReadsAndWritesPinnedHostMemory,
                 "CUDA C++ Programming Guide, Mapped Memory; cuMemHostGetDevicePointer") {
    unsigned char* const from = pinned(64, 9);
    unsigned char* const to = pinned(64, 0);
    CUdeviceptr seen = 0;
    OK(gpu->cuMemHostGetDevicePointer(&seen, from, 0));
    OK(launch(list(seen, address(to), 64), 1, stream()));
    OK(gpu->cuCtxSynchronize());
    EXPECT_EQ(std::memcmp(to, from, 64), 0);
}

KERNEL_STATEMENT(AKernelReadsRegisteredMemory,
                 "cuMemHostRegister: CU_MEMHOSTREGISTER_DEVICEMAP; cuMemHostGetDevicePointer") {
    std::vector<unsigned char> memory(1 << 16, 5);
    OK(gpu->cuMemHostRegister(memory.data(), memory.size(),
                              CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    CUdeviceptr seen = 0;
    OK(gpu->cuMemHostGetDevicePointer(&seen, memory.data(), 0));
    const CUdeviceptr to = device_memory(1000);
    OK(launch(list(seen + 24, to, 1000), 1, stream()));
    OK(gpu->cuCtxSynchronize());
    EXPECT_EQ(bytes_of(to, 1000), std::vector<unsigned char>(1000, 5));
    OK(gpu->cuMemHostUnregister(memory.data()));
}

KERNEL_STATEMENT(AllThreadsOfALaunchRun, "cuLaunchKernel: gridDimX, blockDimX") {
    constexpr unsigned kRows = 100;
    constexpr unsigned kBytes = 48;
    unsigned char* const from = pinned(std::size_t{kRows} * kBytes);
    for (unsigned i = 0; i < kRows * kBytes; ++i) {
        from[i] = static_cast<unsigned char>(i * 7 + 1);
    }
    const CUdeviceptr to = device_memory(std::size_t{kRows} * kBytes);
    auto* const rows = reinterpret_cast<RowCopy*>(pinned(kRows * sizeof(RowCopy)));
    for (unsigned i = 0; i < kRows; ++i) {
        rows[i] = {address(from) + std::uint64_t{i} * kBytes,
                   to + std::uint64_t{kRows - 1 - i} * kBytes, kBytes};
    }
    OK(launch(rows, kRows, stream(), 3));
    OK(gpu->cuCtxSynchronize());
    const auto found = bytes_of(to, std::size_t{kRows} * kBytes);
    for (unsigned i = 0; i < kRows; ++i) {
        EXPECT_EQ(
            std::memcmp(&found[std::size_t{kRows - 1 - i} * kBytes], from + i * kBytes, kBytes), 0)
            << i;
    }
}

KERNEL_STATEMENT(ALaunchOfNothingIsRefused, "cuLaunchKernel: CUDA_ERROR_INVALID_VALUE") {
    const CUdeviceptr memory = device_memory(64);
    RowCopy* const rows = list(memory, memory, 0);
    EXPECT_EQ(launch(rows, 1, stream(), 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(launch(rows, 1, stream(), 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(launch(rows, 1, stream(), 1, 2048), CUDA_ERROR_INVALID_VALUE);
}

KERNEL_STATEMENT(AKernelAndItsStreamAreOfOneContext,
                 "cuLaunchKernel: CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT") {
    CUcontext other = nullptr;
    OK(gpu->cuCtxCreate(&other, 0, 0));
    CUstream its = nullptr;
    OK(gpu->cuStreamCreate(&its, CU_STREAM_NON_BLOCKING));
    OK(gpu->cuCtxSetCurrent(context));
    const CUdeviceptr memory = device_memory(64);
    EXPECT_THAT(launch(list(memory, memory, 0), 1, its),
                testing::AnyOf(CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT));
    OK(gpu->cuCtxDestroy(other));
    OK(gpu->cuCtxSetCurrent(context));
}

}  // namespace
}  // namespace penstock::device::cuda::conformance
