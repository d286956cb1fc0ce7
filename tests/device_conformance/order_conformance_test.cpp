// SPDX-License-Identifier: Apache-2.0
// Statements on copies, streams and events: what comes before what, and what is seen when.
#include "device_conformance/gpu_driver.hpp"

#include <chrono>
#include <cstring>
#include <thread>

namespace penstock::device::cuda::conformance {
namespace {

constexpr std::size_t kMiB = 1U << 20U;

const auto kLegacy = reinterpret_cast<CUstream>(CU_STREAM_LEGACY);         // NOLINT
const auto kPerThread = reinterpret_cast<CUstream>(CU_STREAM_PER_THREAD);  // NOLINT

bool all_are(const std::vector<unsigned char>& bytes, int value) {
    return !bytes.empty() && bytes[0] == value &&
           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

/// Long enough for work that may begin to have begun.
void a_while() {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

STATEMENT(BytesComeBack, "Memory Management, cuMemcpyHtoD and cuMemcpyDtoH") {
    const CUdeviceptr memory = device_memory(kMiB);
    std::vector<unsigned char> sent(100'003);
    for (std::size_t i = 0; i < sent.size(); ++i) {
        sent[i] = static_cast<unsigned char>(i * 7 + i / 251);
    }
    OK(gpu->cuMemcpyHtoD(memory + 13, sent.data(), sent.size()));
    EXPECT_EQ(bytes_of(memory + 13, sent.size()), sent);
}

STATEMENT(CopiesWithinTheDevice, "Memory Management, cuMemcpyDtoD") {
    const CUdeviceptr memory = device_memory(kMiB);
    const std::vector<unsigned char> sent(5000, 0x21);
    OK(gpu->cuMemcpyHtoD(memory, sent.data(), sent.size()));
    OK(gpu->cuMemcpyDtoD(memory + 70'001, memory, sent.size()));
    EXPECT_EQ(bytes_of(memory + 70'001, sent.size()), sent);
}

STATEMENT(DirectionsAreInferred, "Memory Management, cuMemcpy; Unified Addressing") {
    const CUdeviceptr memory = device_memory(4096);
    unsigned char* host = pinned(8192, 0x33);
    std::memset(host + 4096, 0, 4096);
    const CUdeviceptr there = reinterpret_cast<std::uintptr_t>(host);
    OK(gpu->cuMemcpy(memory, there, 4096));
    OK(gpu->cuMemcpy(there + 4096, memory, 4096));
    EXPECT_EQ(host[4096], 0x33);
    EXPECT_EQ(host[8191], 0x33);
}

STATEMENT(CopiesToNowhereAreRefused, "Memory Management, cuMemcpyHtoD: CUDA_ERROR_INVALID_VALUE") {
    std::vector<unsigned char> host(64);
    EXPECT_EQ(gpu->cuMemcpyHtoD(0x1000, host.data(), host.size()), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->cuMemcpyDtoH(host.data(), 0x1000, host.size()), CUDA_ERROR_INVALID_VALUE);
}

STATEMENT(CopiesToFreedMemoryAreRefused, "Memory Management, cuMemFree") {
    CUdeviceptr memory = 0;
    std::vector<unsigned char> host(64);
    OK(gpu->cuMemAlloc(&memory, 64 * kMiB));
    OK(gpu->cuMemFree(memory));
    EXPECT_EQ(gpu->cuMemcpyHtoD(memory, host.data(), host.size()), CUDA_ERROR_INVALID_VALUE);
}

STATEMENT(FillsAreInOrderWithCopies, "Memory Management, cuMemsetD8Async") {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB);
    const CUstream s = stream();
    OK(gpu->cuMemsetD8Async(memory, 0x11, kMiB, s));
    OK(gpu->cuMemsetD8Async(memory, 0x22, kMiB / 2, s));
    OK(gpu->cuMemcpyDtoHAsync(host, memory, kMiB, s));
    OK(gpu->cuStreamSynchronize(s));
    EXPECT_EQ(host[0], 0x22);
    EXPECT_EQ(host[kMiB / 2 - 1], 0x22);
    EXPECT_EQ(host[kMiB / 2], 0x11);
    EXPECT_EQ(host[kMiB - 1], 0x11);
}

STATEMENT(CopiesOfOneStreamKeepTheirOrder, "Stream Management; Programming Guide, \"Streams\"") {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB * 8);
    const CUstream s = stream();
    for (int i = 0; i < 8; ++i) {
        std::memset(host + kMiB * static_cast<std::size_t>(i), i + 1, kMiB);
        OK(gpu->cuMemcpyHtoDAsync(memory, host + kMiB * static_cast<std::size_t>(i), kMiB, s));
    }
    OK(gpu->cuStreamSynchronize(s));
    EXPECT_TRUE(all_are(bytes_of(memory, kMiB), 8));
}

STATEMENT(CopiesInAndOutKeepTheirOrder, "Stream Management; Programming Guide, \"Streams\"") {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(2 * kMiB, 1);
    const CUstream s = stream();
    for (unsigned char i = 2; i < 12; ++i) {
        std::memset(host, i, kMiB);
        OK(gpu->cuMemcpyHtoDAsync(memory, host, kMiB, s));
        OK(gpu->cuMemcpyDtoHAsync(host + kMiB, memory, kMiB, s));
        OK(gpu->cuStreamSynchronize(s));
        ASSERT_EQ(host[kMiB], i);
        ASSERT_EQ(host[2 * kMiB - 1], i);
    }
}

STATEMENT(PinnedCopiesReturnBeforeTheyAreDone, "API synchronization behavior, Asynchronous") {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB);
    const CUstream s = stream();
    Gate gate(*gpu, s);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, kMiB, s));
    EXPECT_EQ(gpu->cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    gate.open();
    OK(gpu->cuStreamSynchronize(s));
    EXPECT_EQ(gpu->cuStreamQuery(s), CUDA_SUCCESS);
}

STATEMENT(HostMemoryIsReadWhenTheCopyRuns, "API synchronization behavior, Asynchronous") {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB, 0x01);
    const CUstream s = stream();
    Gate gate(*gpu, s);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, kMiB, s));
    std::memset(host, 0x02, kMiB);
    gate.open();
    OK(gpu->cuStreamSynchronize(s));
    EXPECT_TRUE(all_are(bytes_of(memory, kMiB), 0x02));
}

STATEMENT(RegisteredMemoryIsPinned, "Memory Management, cuMemHostRegister") {
    const CUdeviceptr memory = device_memory(kMiB);
    const std::unique_ptr<void, void (*)(void*)> host(std::aligned_alloc(4096, kMiB), std::free);
    std::memset(host.get(), 0x01, kMiB);
    OK(gpu->cuMemHostRegister(host.get(), kMiB, 0));
    const CUstream s = stream();
    Gate gate(*gpu, s);
    OK(gpu->cuMemcpyHtoDAsync(memory, host.get(), kMiB, s));  // returns, so it is pinned
    std::memset(host.get(), 0x02, kMiB);
    gate.open();
    OK(gpu->cuStreamSynchronize(s));
    EXPECT_TRUE(all_are(bytes_of(memory, kMiB), 0x02));
    OK(gpu->cuMemHostUnregister(host.get()));
}

STATEMENT(PageableCopiesOutAreDoneAtReturn,
          "API synchronization behavior, Asynchronous: device memory to pageable host memory") {
    const CUdeviceptr memory = device_memory(8 * kMiB);
    const CUstream s = stream();
    std::vector<unsigned char> host(8 * kMiB, 0);
    OK(gpu->cuMemsetD8Async(memory, 0x44, host.size(), s));
    OK(gpu->cuMemcpyDtoHAsync(host.data(), memory, host.size(), s));
    EXPECT_TRUE(all_are(host, 0x44));
}

STATEMENT(PageableCopiesInMayBeReusedAtReturn,
          "API synchronization behavior, Asynchronous: staged before the call returns") {
    const CUdeviceptr memory = device_memory(8 * kMiB);
    const CUstream s = stream();
    std::vector<unsigned char> host(8 * kMiB, 0x55);
    OK(gpu->cuMemcpyHtoDAsync(memory, host.data(), host.size(), s));
    std::fill(host.begin(), host.end(), static_cast<unsigned char>(0));
    OK(gpu->cuStreamSynchronize(s));
    EXPECT_TRUE(all_are(bytes_of(memory, host.size()), 0x55));
}

STATEMENT(BatchesCopyAll, "Memory Management, cuMemcpyBatchAsync (12.8)") {
    if (gpu->cuMemcpyBatchAsync == nullptr) {
        GTEST_SKIP() << "this driver has no cuMemcpyBatchAsync";
    }
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB);
    const CUstream s = stream();
    std::array<CUdeviceptr, 4> to{memory, memory + 1000, memory + 9000, memory + 70'001};
    std::array<CUdeviceptr, 4> from{};
    std::array<std::size_t, 4> bytes{1000, 8000, 333, 4097};
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = 0;
    std::size_t failed = 0;
    for (std::size_t i = 0; i < 4; ++i) {
        std::memset(host + i * 10'000, static_cast<int>(i) + 1, bytes[i]);
        from[i] = reinterpret_cast<std::uintptr_t>(host) + i * 10'000;
    }
    OK(gpu->cuMemcpyBatchAsync(to.data(), from.data(), bytes.data(), 4, &attributes, &first, 1,
                               &failed, s));
    OK(gpu->cuStreamSynchronize(s));
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_TRUE(all_are(bytes_of(to[i], bytes[i]), static_cast<int>(i) + 1)) << i;
    }
}

STATEMENT(BatchesAreInStreamOrder, "Memory Management, cuMemcpyBatchAsync (12.8)") {
    if (gpu->cuMemcpyBatchAsync == nullptr) {
        GTEST_SKIP() << "this driver has no cuMemcpyBatchAsync";
    }
    CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB, 0x01);
    const CUstream s = stream();
    CUdeviceptr from = reinterpret_cast<std::uintptr_t>(host);
    std::size_t bytes = kMiB;
    std::size_t first = 0;
    std::size_t failed = 0;
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    Gate gate(*gpu, s);
    OK(gpu->cuMemsetD8Async(memory, 0x07, kMiB, s));
    OK(gpu->cuMemcpyBatchAsync(&memory, &from, &bytes, 1, &attributes, &first, 1, &failed, s));
    EXPECT_EQ(gpu->cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    std::memset(host, 0x02, kMiB);
    gate.open();
    OK(gpu->cuStreamSynchronize(s));
    EXPECT_TRUE(all_are(bytes_of(memory, kMiB), 0x02));
}

STATEMENT(BatchesWantAStream, "Memory Management, cuMemcpyBatchAsync: not the legacy NULL stream") {
    if (gpu->cuMemcpyBatchAsync == nullptr) {
        GTEST_SKIP() << "this driver has no cuMemcpyBatchAsync";
    }
    CUdeviceptr memory = device_memory(4096);
    CUdeviceptr from = reinterpret_cast<std::uintptr_t>(pinned(4096));
    std::size_t bytes = 4096;
    std::size_t first = 0;
    std::size_t failed = 0;
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    EXPECT_NE(gpu->cuMemcpyBatchAsync(&memory, &from, &bytes, 1, &attributes, &first, 1, &failed,
                                      nullptr),
              CUDA_SUCCESS);
}

STATEMENT(StreamsDoNotWaitForEachOther, "Stream Management, CU_STREAM_NON_BLOCKING") {
    const CUstream held = stream();
    const CUstream other = stream();
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB, 0x09);
    Gate gate(*gpu, held);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, kMiB, other));
    OK(gpu->cuStreamSynchronize(other));
    EXPECT_EQ(gpu->cuStreamQuery(held), CUDA_ERROR_NOT_READY);
}

STATEMENT(StreamsHaveFlagsAndAContext, "Stream Management, cuStreamGetFlags, cuStreamGetCtx") {
    for (const unsigned flags : {0U, CU_STREAM_NON_BLOCKING}) {
        unsigned found = 7;
        CUcontext of = nullptr;
        const CUstream s = stream(flags);
        OK(gpu->cuStreamGetFlags(s, &found));
        OK(gpu->cuStreamGetCtx(s, &of));
        EXPECT_EQ(found, flags);
        EXPECT_EQ(of, context);
    }
}

STATEMENT(StreamsKnowTheirContextWithNoneCurrent, "Stream Management, cuStreamGetCtx") {
    const CUstream s = stream();
    CUcontext of = nullptr;
    OK(gpu->cuCtxSetCurrent(nullptr));
    OK(gpu->cuStreamGetCtx(s, &of));
    EXPECT_EQ(of, context);
    EXPECT_EQ(gpu->cuStreamGetCtx(nullptr, &of), CUDA_ERROR_INVALID_CONTEXT);
}

STATEMENT(DefaultStreamsBelongToTheCurrentContext, "Stream Management, cuStreamGetCtx") {
    for (const CUstream s : {CUstream{nullptr}, kLegacy, kPerThread}) {
        CUcontext of = nullptr;
        OK(gpu->cuStreamGetCtx(s, &of));
        EXPECT_EQ(of, context);
    }
}

STATEMENT(NothingIsCaptured, "Stream Management, cuStreamIsCapturing") {
    auto status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    OK(gpu->cuStreamIsCapturing(stream(), &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

STATEMENT(HostFunctionsAreInOrder, "Execution Control, cuLaunchHostFunc") {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(2 * kMiB, 0x01);
    const CUstream s = stream();
    OK(gpu->cuMemsetD8Async(memory, 0x0A, kMiB, s));
    OK(gpu->cuMemcpyDtoHAsync(host, memory, kMiB, s));
    const auto move = [](void* data) {
        auto* bytes = static_cast<unsigned char*>(data);
        std::memcpy(bytes + kMiB, bytes, kMiB);
    };
    OK(gpu->cuLaunchHostFunc(s, move, host));
    OK(gpu->cuMemcpyHtoDAsync(memory, host + kMiB, kMiB, s));
    OK(gpu->cuStreamSynchronize(s));
    EXPECT_EQ(host[2 * kMiB - 1], 0x0A);
    EXPECT_TRUE(all_are(bytes_of(memory, kMiB), 0x0A));
}

STATEMENT(ADestroyedStreamEndsItsWork, "Stream Management, cuStreamDestroy") {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB, 0x66);
    const CUevent done = event();
    CUstream s = nullptr;
    OK(gpu->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    Gate gate(*gpu, s);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, kMiB, s));
    OK(gpu->cuEventRecord(done, s));
    OK(gpu->cuStreamDestroy(s));  // returns immediately
    EXPECT_EQ(gpu->cuEventQuery(done), CUDA_ERROR_NOT_READY);
    gate.open();
    OK(gpu->cuEventSynchronize(done));
    EXPECT_TRUE(all_are(bytes_of(memory, kMiB), 0x66));
}

STATEMENT(TheDefaultStreamWaitsForBlockingStreams, "Stream synchronization behavior, Legacy") {
    const CUdeviceptr memory = device_memory(4096);
    unsigned char* host = pinned(4096, 0x01);
    const CUstream blocking = stream(0);
    const CUevent done = event();
    Gate gate(*gpu, blocking);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, 4096, nullptr));
    OK(gpu->cuEventRecord(done, nullptr));
    a_while();
    EXPECT_EQ(gpu->cuEventQuery(done), CUDA_ERROR_NOT_READY);
    gate.open();
    OK(gpu->cuEventSynchronize(done));
}

STATEMENT(TheDefaultStreamPassesNonBlockingStreams, "Stream synchronization behavior, Legacy") {
    const CUdeviceptr memory = device_memory(4096);
    unsigned char* host = pinned(4096, 0x01);
    const CUstream free = stream(CU_STREAM_NON_BLOCKING);
    const Gate gate(*gpu, free);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, 4096, nullptr));
    OK(gpu->cuStreamSynchronize(nullptr));
    EXPECT_EQ(gpu->cuStreamQuery(free), CUDA_ERROR_NOT_READY);
}

STATEMENT(BlockingStreamsWaitForTheDefaultStream, "Stream synchronization behavior, Legacy") {
    const CUdeviceptr memory = device_memory(8192);
    unsigned char* host = pinned(8192, 0x01);
    const CUstream blocking = stream(0);
    const CUstream free = stream(CU_STREAM_NON_BLOCKING);
    Gate gate(*gpu, nullptr);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, 4096, blocking));
    OK(gpu->cuMemcpyHtoDAsync(memory + 4096, host, 4096, free));
    OK(gpu->cuStreamSynchronize(free));
    a_while();
    EXPECT_EQ(gpu->cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
    gate.open();
    OK(gpu->cuStreamSynchronize(blocking));
}

STATEMENT(PerThreadStreamsWaitForTheDefaultStream, "Stream synchronization behavior, Per-thread") {
    const CUdeviceptr memory = device_memory(4096);
    unsigned char* host = pinned(4096, 0x01);
    Gate gate(*gpu, kLegacy);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, 4096, kPerThread));
    a_while();
    EXPECT_EQ(gpu->cuStreamQuery(kPerThread), CUDA_ERROR_NOT_READY);
    gate.open();
    OK(gpu->cuStreamSynchronize(kPerThread));
}

STATEMENT(SynchronousCopiesPassNonBlockingStreams, "API synchronization behavior, Synchronous") {
    const CUdeviceptr memory = device_memory(4096);
    const std::vector<unsigned char> host(4096, 0x12);
    const CUstream free = stream(CU_STREAM_NON_BLOCKING);
    const Gate gate(*gpu, free);
    OK(gpu->cuMemcpyHtoD(memory, host.data(), 4096));
    EXPECT_EQ(bytes_of(memory, 4096), host);
    EXPECT_EQ(gpu->cuStreamQuery(free), CUDA_ERROR_NOT_READY);
}

STATEMENT(ContextsSynchronizeAllStreams, "Context Management, cuCtxSynchronize") {
    const CUstream one = stream();
    const CUstream two = stream();
    const CUdeviceptr memory = device_memory(8 * kMiB);
    unsigned char* host = pinned(4 * kMiB, 0x01);
    OK(gpu->cuMemcpyHtoDAsync(memory, host, 4 * kMiB, one));
    OK(gpu->cuMemcpyHtoDAsync(memory + 4 * kMiB, host, 4 * kMiB, two));
    OK(gpu->cuCtxSynchronize());
    EXPECT_EQ(gpu->cuStreamQuery(one), CUDA_SUCCESS);
    EXPECT_EQ(gpu->cuStreamQuery(two), CUDA_SUCCESS);
}

STATEMENT(EventsBeginAsDone, "Event Management, cuEventRecord: an empty set of work") {
    const CUevent e = event();
    EXPECT_EQ(gpu->cuEventQuery(e), CUDA_SUCCESS);
    OK(gpu->cuEventSynchronize(e));
}

STATEMENT(EventsAreDoneWhenTheStreamIsThere, "Event Management, cuEventQuery") {
    const CUstream s = stream();
    const CUevent e = event();
    Gate gate(*gpu, s);
    OK(gpu->cuEventRecord(e, s));
    EXPECT_EQ(gpu->cuEventQuery(e), CUDA_ERROR_NOT_READY);
    gate.open();
    OK(gpu->cuEventSynchronize(e));
    EXPECT_EQ(gpu->cuEventQuery(e), CUDA_SUCCESS);
}

STATEMENT(EventsAreNotDoneBeforeTheCopy, "Event Management, cuEventQuery") {
    const CUdeviceptr memory = device_memory(16 * kMiB);
    unsigned char* host = pinned(16 * kMiB);
    const CUstream s = stream();
    const CUevent e = event();
    for (unsigned char i = 1; i <= 5; ++i) {
        OK(gpu->cuMemsetD8Async(memory, i, 16 * kMiB, s));
        OK(gpu->cuMemcpyDtoHAsync(host, memory, 16 * kMiB, s));
        OK(gpu->cuEventRecord(e, s));
        while (gpu->cuEventQuery(e) == CUDA_ERROR_NOT_READY) {
            std::this_thread::yield();
        }
        ASSERT_EQ(gpu->cuEventQuery(e), CUDA_SUCCESS);
        ASSERT_EQ(host[0], i);
        ASSERT_EQ(host[16 * kMiB - 1], i);
    }
}

STATEMENT(EventsAreQueriedOnAnyThread, "Event Management, cuEventQuery: no context among errors") {
    const CUevent e = event();
    OK(gpu->cuEventRecord(e, stream()));
    CUresult found = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
        do {
            found = gpu->cuEventQuery(e);
        } while (found == CUDA_ERROR_NOT_READY);
    }).join();
    EXPECT_EQ(found, CUDA_SUCCESS);
}

STATEMENT(AStreamWaitsForAnEvent, "Stream Management, cuStreamWaitEvent") {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB, 0x01);
    const CUstream first = stream();
    const CUstream second = stream();
    const CUevent e = event();
    Gate gate(*gpu, first);
    OK(gpu->cuMemsetD8Async(memory, 0x77, kMiB, first));
    OK(gpu->cuEventRecord(e, first));
    OK(gpu->cuStreamWaitEvent(second, e, CU_EVENT_WAIT_DEFAULT));
    OK(gpu->cuMemcpyDtoHAsync(host, memory, kMiB, second));
    a_while();
    EXPECT_EQ(gpu->cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    gate.open();
    OK(gpu->cuStreamSynchronize(second));
    EXPECT_EQ(host[0], 0x77);
    EXPECT_EQ(host[kMiB - 1], 0x77);
}

STATEMENT(AnEventThatWasNeverRecordedHoldsNothing, "Event Management, cuEventRecord") {
    const CUstream s = stream();
    OK(gpu->cuStreamWaitEvent(s, event(), CU_EVENT_WAIT_DEFAULT));
    OK(gpu->cuStreamSynchronize(s));
}

STATEMENT(AWaitIsForTheRecordAtItsTime, "Event Management, cuEventRecord: later calls") {
    const CUstream first = stream();
    const CUstream second = stream();
    const CUstream third = stream();
    const CUevent e = event();
    Gate gate(*gpu, first);
    OK(gpu->cuEventRecord(e, first));
    OK(gpu->cuStreamWaitEvent(second, e, CU_EVENT_WAIT_DEFAULT));
    OK(gpu->cuEventRecord(e, third));  // done at once, and of no account to `second`
    OK(gpu->cuEventSynchronize(e));
    a_while();
    EXPECT_EQ(gpu->cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    gate.open();
    OK(gpu->cuStreamSynchronize(second));
}

STATEMENT(AnEventMayBeDestroyedBeforeItIsDone, "Event Management, cuEventDestroy") {
    const CUstream first = stream();
    const CUstream second = stream();
    CUevent e = nullptr;
    OK(gpu->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    Gate gate(*gpu, first);
    OK(gpu->cuEventRecord(e, first));
    OK(gpu->cuStreamWaitEvent(second, e, CU_EVENT_WAIT_DEFAULT));
    OK(gpu->cuEventDestroy(e));
    EXPECT_EQ(gpu->cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    gate.open();
    OK(gpu->cuStreamSynchronize(second));
}

// What Transfer::join() is built of: our copies on a stream of ours, the caller's stream in any
// context of the GPU, its event destroyed at once.
STATEMENT(AStreamWaitsForAnEventOfAnotherContext,
          "Stream Management, cuStreamWaitEvent: an event of another context or device") {
    const CUstream first = stream();
    const CUevent e = event();
    Gate gate(*gpu, first);
    OK(gpu->cuEventRecord(e, first));
    CUcontext second = nullptr;
    OK(gpu->cuCtxCreate(&second, 0, 0));  // is current now
    CUstream s = nullptr;
    OK(gpu->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(gpu->cuStreamWaitEvent(s, e, CU_EVENT_WAIT_DEFAULT));
    a_while();
    EXPECT_EQ(gpu->cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    gate.open();
    OK(gpu->cuStreamSynchronize(s));
    OK(gpu->cuStreamDestroy(s));
    OK(gpu->cuCtxDestroy(second));
    OK(gpu->cuCtxSetCurrent(context));
}

STATEMENT(TheDefaultStreamsWaitForAnEvent, "Stream Management, cuStreamWaitEvent") {
    const CUdeviceptr memory = device_memory(kMiB);
    unsigned char* host = pinned(kMiB, 0x01);
    for (const std::uintptr_t name : {std::uintptr_t{0}, CU_STREAM_PER_THREAD}) {
        auto* const second = reinterpret_cast<CUstream>(name);
        const CUstream first = stream();
        const CUevent e = event();
        Gate gate(*gpu, first);
        OK(gpu->cuMemsetD8Async(memory, static_cast<unsigned char>(0x70 + name), kMiB, first));
        OK(gpu->cuEventRecord(e, first));
        OK(gpu->cuStreamWaitEvent(second, e, CU_EVENT_WAIT_DEFAULT));
        OK(gpu->cuMemcpyDtoHAsync(host, memory, kMiB, second));
        a_while();
        EXPECT_EQ(gpu->cuStreamQuery(second), CUDA_ERROR_NOT_READY);
        gate.open();
        OK(gpu->cuStreamSynchronize(second));
        EXPECT_EQ(host[kMiB - 1], 0x70 + name);
    }
}

STATEMENT(ElapsedTimeGrows, "Event Management, cuEventElapsedTime") {
    const CUdeviceptr memory = device_memory(64 * kMiB);
    const CUstream s = stream();
    const CUevent begin = event(0);
    const CUevent end = event(0);
    float milliseconds = -1;
    OK(gpu->cuEventRecord(begin, s));
    OK(gpu->cuMemsetD8Async(memory, 1, 64 * kMiB, s));
    OK(gpu->cuEventRecord(end, s));
    OK(gpu->cuStreamSynchronize(s));
    OK(gpu->cuEventElapsedTime(&milliseconds, begin, end));
    EXPECT_GT(milliseconds, 0);
}

STATEMENT(NoTimeOfEventsWithoutTiming, "Event Management, cuEventElapsedTime") {
    const CUstream s = stream();
    const CUevent begin = event(CU_EVENT_DISABLE_TIMING);
    const CUevent end = event(0);
    float milliseconds = 0;
    OK(gpu->cuEventRecord(begin, s));
    OK(gpu->cuEventRecord(end, s));
    OK(gpu->cuStreamSynchronize(s));
    EXPECT_EQ(gpu->cuEventElapsedTime(&milliseconds, begin, end), CUDA_ERROR_INVALID_HANDLE);
}

STATEMENT(NoTimeOfEventsNotRecorded, "Event Management, cuEventElapsedTime") {
    float milliseconds = 0;
    EXPECT_EQ(gpu->cuEventElapsedTime(&milliseconds, event(0), event(0)),
              CUDA_ERROR_INVALID_HANDLE);
}

STATEMENT(NoTimeOfEventsNotDone, "Event Management, cuEventElapsedTime") {
    const CUstream s = stream();
    const CUevent begin = event(0);
    const CUevent end = event(0);
    float milliseconds = 0;
    const Gate gate(*gpu, s);
    OK(gpu->cuEventRecord(begin, s));
    OK(gpu->cuEventRecord(end, s));
    EXPECT_EQ(gpu->cuEventElapsedTime(&milliseconds, begin, end), CUDA_ERROR_NOT_READY);
}

STATEMENT(EventsBelongToOneContext, "Event Management, cuEventRecord: the same context") {
    const CUstream here = stream();
    CUcontext second = nullptr;
    CUevent there = nullptr;
    OK(gpu->cuCtxCreate(&second, 0, 0));
    OK(gpu->cuEventCreate(&there, 0));
    EXPECT_EQ(gpu->cuEventRecord(there, here), CUDA_ERROR_INVALID_HANDLE);
    OK(gpu->cuCtxDestroy(second));
    OK(gpu->cuCtxSetCurrent(context));
}

STATEMENT(FreedWithWorkUnderWay, "Memory Management, cuMemFree: work that uses it ends first") {
    CUdeviceptr memory = 0;
    unsigned char* host = pinned(8 * kMiB, 0x01);
    const CUstream s = stream();
    OK(gpu->cuMemAlloc(&memory, 8 * kMiB));
    OK(gpu->cuMemsetD8Async(memory, 0x3C, 8 * kMiB, s));
    OK(gpu->cuMemcpyDtoHAsync(host, memory, 8 * kMiB, s));
    OK(gpu->cuMemFree(memory));
    OK(gpu->cuStreamSynchronize(s));
    EXPECT_EQ(host[8 * kMiB - 1], 0x3C);
}

}  // namespace
}  // namespace penstock::device::cuda::conformance
