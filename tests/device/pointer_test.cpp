// SPDX-License-Identifier: Apache-2.0
// Whose memory an address is, and what of a claim is refused.
#include "device/cuda/pointer.hpp"

#include "device/cuda/context.hpp"
#include "device/fake_gpu.hpp"
#include "memory/block.hpp"
#include "support/temp_folder.hpp"

#include <penstock/gpu.hpp>

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

namespace penstock::device {
namespace {

using ::testing::HasSubstr;

class Pointers : public OnFakeGpu {
protected:
    static void* at(cuda::CUdeviceptr address) {
        return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
    }
    static base::Result<void> check(const Memory& claim) {
        return check_extents(engine::Extents::of_one({0, claim, 0}));
    }
    static std::string refusal(void* pointer, std::uint64_t bytes) {
        try {
            static_cast<void>(device_memory(pointer, bytes));
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
            return error.what();
        }
        ADD_FAILURE() << "taken";
        return {};
    }
};

TEST_F(Pointers, OfAGpuAreTakenWholeAndInPart) {
    const cuda::CUdeviceptr memory = device_bytes(1000);
    for (const auto& [skip, bytes] : {std::pair{0U, 1000U}, {0U, 1U}, {999U, 1U}, {500U, 500U}}) {
        const Memory found = device_memory(at(memory + skip), bytes);
        EXPECT_EQ(found.kind, MemoryKind::kDevice);
        EXPECT_EQ(found.device, 0);
        EXPECT_EQ(found.data, at(memory + skip));
        EXPECT_EQ(found.bytes, bytes);
        EXPECT_TRUE(check(found).has_value());
    }
}

TEST_F(Pointers, PastTheirAllocationAreRefusedWithBothSizes) {
    const cuda::CUdeviceptr memory = device_bytes(1000);
    static_cast<void>(device_bytes(1000));  // most likely next to it
    EXPECT_THAT(refusal(at(memory), 1001), HasSubstr("1001 bytes"));
    EXPECT_THAT(refusal(at(memory), 1001), HasSubstr("has 1000 bytes"));
    EXPECT_THAT(refusal(at(memory + 400), 601), HasSubstr("at most 600"));
    static_cast<void>(refusal(at(memory + 1), std::numeric_limits<std::uint64_t>::max()));
    const Memory claim(static_cast<std::byte*>(at(memory)), 1001, MemoryKind::kDevice, 0);
    EXPECT_FALSE(check(claim).has_value());
}

TEST_F(Pointers, OfTheHostAreRefused) {
    std::vector<std::byte> host(4096);
    EXPECT_THAT(refusal(host.data(), host.size()), HasSubstr("ordinary host memory"));
    static_cast<void>(refusal(nullptr, 1));
    const Memory claim(host.data(), host.size(), MemoryKind::kDevice, 0);
    EXPECT_FALSE(check(claim).has_value());
    EXPECT_TRUE(check(Memory(host)).has_value());
}

TEST_F(Pointers, ThatWereFreedAreRefused) {
    const Current current(*driver_, primary_context(*driver_, 0).value());
    cuda::CUdeviceptr memory = 0;
    ASSERT_EQ(driver_->cuMemAlloc(&memory, 4096), cuda::CUDA_SUCCESS);
    ASSERT_EQ(driver_->cuMemFree(memory), cuda::CUDA_SUCCESS);
    EXPECT_THAT(refusal(at(memory), 16), HasSubstr("was freed"));
}

// As an address that came by a pipe, or an IPC handle that was closed: this process has no memory
// there.
TEST_F(Pointers, DISABLED_OfAProcess) {
    std::ofstream(std::getenv("PENSTOCK_TEST_ADDRESS")) << device_bytes(std::uint64_t{1} << 30);
}

TEST_F(Pointers, OfAnotherProcessAreRefused) {
    const support::TempFolder folder;
    const std::string file = folder / "address";
    ASSERT_TRUE(runs_alone("Pointers.DISABLED_OfAProcess",
                           {"PENSTOCK_TEST_ADDRESS=" + file, "FAKE_GPU_POISON=0"}));
    std::uint64_t address = 0;
    ASSERT_TRUE(std::ifstream(file) >> address);
    // Its address may be one of ours, as on a GPU: then nobody can tell. Its end is not.
    address += (std::uint64_t{1} << 30) - 4096;
    auto* const memory = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
    EXPECT_THAT(refusal(memory, 4096), HasSubstr("belongs to another process"));
    const auto claimed = check(Memory(memory, 4096, MemoryKind::kDevice, 0));
    ASSERT_FALSE(claimed);
    EXPECT_EQ(claimed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(claimed.error().message, HasSubstr("extent 0: 4 KiB at 0x"));
}

TEST_F(Pointers, OfRegisteredHostMemoryAreHostMemory) {
    auto block = memory::Block::make(8192).value();
    const Current current(*driver_, primary_context(*driver_, 0).value());
    ASSERT_EQ(driver_->cuMemHostRegister(block.data(), block.size(), 0), cuda::CUDA_SUCCESS);
    const Memory found = device_memory(block.data(), 8192);
    EXPECT_EQ(found.kind, MemoryKind::kHost);
    const Memory claim(block.data(), 8192, MemoryKind::kDevice, 0);
    const auto checked = check(claim);
    ASSERT_FALSE(checked.has_value());
    EXPECT_THAT(checked.error().message, HasSubstr("registered with CUDA"));
    driver_->cuMemHostUnregister(block.data());
}

TEST_F(Pointers, OfManagedMemoryAreOfItsGpu) {
    void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    auto* make =
        reinterpret_cast<cuda::cuMemAllocManaged_type*>(::dlsym(library, "cuMemAllocManaged"));
    ASSERT_NE(make, nullptr);
    const Current current(*driver_, primary_context(*driver_, 0).value());
    cuda::CUdeviceptr memory = 0;
    ASSERT_EQ(make(&memory, 4096, cuda::CU_MEM_ATTACH_GLOBAL), cuda::CUDA_SUCCESS);
    const Memory found = device_memory(at(memory), 4096);
    EXPECT_EQ(found.kind, MemoryKind::kDevice);
    EXPECT_EQ(found.device, 0);
    driver_->cuMemFree(memory);
}

// A list of many pieces of one tensor costs one question; the extent that is wrong is named.
TEST_F(Pointers, OfManyExtentsAreAskedForOnceAnAllocation) {
    const cuda::CUdeviceptr first = device_bytes(10'000);
    const cuda::CUdeviceptr second = device_bytes(10'000);
    std::vector<std::byte> host(64);
    std::vector<Extent> list;
    for (std::uint64_t i = 0; i < 1000; ++i) {
        const cuda::CUdeviceptr from = i < 500 ? first : second;
        list.push_back(
            {i * 10, Memory(static_cast<std::byte*>(at(from + i)), 10, MemoryKind::kDevice, 0), 0});
        list.push_back({i * 10, Memory(host), 0});
    }
    const std::uint64_t before = fake_->calls("cuPointerGetAttributes");
    EXPECT_TRUE(check_extents(engine::Extents(list)).has_value());
    EXPECT_EQ(fake_->calls("cuPointerGetAttributes") - before, 2U);
    list[700].memory.bytes = 20'000;
    const auto checked = check_extents(engine::Extents(list));
    ASSERT_FALSE(checked.has_value());
    EXPECT_THAT(checked.error().message, HasSubstr("extent 700: 20000 bytes"));
}

TEST_F(Pointers, WithoutBytesAreNotAskedAbout) {
    const std::uint64_t before = fake_->calls("cuPointerGetAttributes");
    EXPECT_EQ(device_memory(nullptr, 0).bytes, 0U);
    EXPECT_EQ(fake_->calls("cuPointerGetAttributes"), before);
}

TEST_F(Pointers, OfAnotherGpuAreNamed) {
    const cuda::CUdeviceptr memory = device_bytes(64);
    const Memory claim(static_cast<std::byte*>(at(memory)), 64, MemoryKind::kDevice, 1);
    const auto checked = check(claim);
    ASSERT_FALSE(checked.has_value());
    EXPECT_THAT(checked.error().message, HasSubstr("memory of GPU 1, and is of GPU 0"));
}

// A question that fails is an error with the driver's words, and nothing is taken for host memory.
TEST_F(Pointers, AreNotGuessedWhenTheDriverFails) {
    const cuda::CUdeviceptr memory = device_bytes(64);
    fake_->fail("cuPointerGetAttributes", 1, cuda::CUDA_ERROR_ECC_UNCORRECTABLE);
    try {
        static_cast<void>(device_memory(at(memory), 64));
        ADD_FAILURE() << "taken";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kSystem);
        EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_ECC_UNCORRECTABLE"));
    }
}

}  // namespace
}  // namespace penstock::device
