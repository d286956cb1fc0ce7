// SPDX-License-Identifier: Apache-2.0
#include "gpu.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>

namespace penstock::benchmarks {

namespace {

// As in cuda.h: a result is an int, a device an int, an address of a GPU 64 bits.
using Plain = int();
using Init = int(unsigned int);
using Count = int(int*);
using Get = int(int*, int);
using Name = int(char*, int, int);
using Retain = int(void**, int);
using SetCurrent = int(void*);
using Allocate = int(std::uint64_t*, std::size_t);
using Free = int(std::uint64_t);
using Register = int(void*, std::size_t, unsigned int);
using Unregister = int(void*);
using CopyIn = int(std::uint64_t, const void*, std::size_t);
using CopyOut = int(void*, std::uint64_t, std::size_t);
using CopyInAsync = int(std::uint64_t, const void*, std::size_t, void*);
using CopyOutAsync = int(void*, std::uint64_t, std::size_t, void*);
using MakeStream = int(void**, unsigned int);
using OnStream = int(void*);
using MakeEvent = int(void**, unsigned int);
using Record = int(void*, void*);
using OnEvent = int(void*);

constexpr unsigned int kPortable = 1;
constexpr unsigned int kNonBlocking = 1;
constexpr unsigned int kNoTiming = 2;

void check(int result, const char* call) {
    if (result != 0) {
        throw std::runtime_error(std::string(call) + " = " + std::to_string(result));
    }
}

std::uint64_t address(const void* memory) {
    return reinterpret_cast<std::uintptr_t>(memory);
}

}  // namespace

template <typename Function>
Function* Gpu::find(const char* name) const {
    void* const found = dlsym(library_, name);
    if (found == nullptr) {
        throw CannotRun(std::string("the CUDA driver has no ") + name);
    }
    return reinterpret_cast<Function*>(found);
}

Gpu::Gpu(const Arguments& arguments) {
    const std::string path = arguments.text("gpu");
    // The library asks for libcuda.so.1, and gets what has that name already.
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library_ == nullptr) {
        throw CannotRun("no CUDA driver: " + std::string(dlerror()));
    }
    fake_ = fake_gpu::FakeGpu::find();
    const double rate = static_cast<double>(arguments.number("copy_rate", 0));
    if (rate > 0) {
        if (!fake_) {
            throw CannotRun(path +
                            " is not the fake driver, so its copies have the rate they have");
        }
        fake_->set_rate(rate, rate);
    }
    const int begun = find<Init>("cuInit")(0);
    int count = 0;
    if (begun != 0 || find<Count>("cuDeviceGetCount")(&count) != 0 || count == 0) {
        throw CannotRun("no GPU: cuInit = " + std::to_string(begun));
    }
    int device = 0;
    check(find<Get>("cuDeviceGet")(&device, 0), "cuDeviceGet");
    std::array<char, 128> name{};
    check(find<Name>("cuDeviceGetName")(name.data(), static_cast<int>(name.size()) - 1, device),
          "cuDeviceGetName");
    name_ = name.data();
    void* context = nullptr;
    check(find<Retain>("cuDevicePrimaryCtxRetain")(&context, device), "cuDevicePrimaryCtxRetain");
    check(find<SetCurrent>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
}

Gpu::~Gpu() {
    if (event_ != nullptr) {
        find<OnEvent>("cuEventDestroy_v2")(event_);
    }
    if (stream_ != nullptr) {
        find<OnStream>("cuStreamDestroy_v2")(stream_);
    }
    for (const std::uint64_t memory : allocated_) {
        find<Free>("cuMemFree_v2")(memory);
    }
    for (void* memory : pinned_) {
        find<Unregister>("cuMemHostUnregister")(memory);
    }
}

AnyMemory Gpu::allocate(std::uint64_t bytes) {
    std::uint64_t memory = 0;
    check(find<Allocate>("cuMemAlloc_v2")(&memory, bytes), "cuMemAlloc");
    allocated_.push_back(memory);
    return device_memory(reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory)), bytes);
}

void Gpu::pin(std::byte* memory, std::uint64_t bytes) {
    check(find<Register>("cuMemHostRegister_v2")(memory, bytes, kPortable), "cuMemHostRegister");
    pinned_.push_back(memory);
}

void Gpu::copy(void* device, void* host, std::uint64_t bytes, bool to_device) {
    check(to_device ? find<CopyIn>("cuMemcpyHtoD_v2")(address(device), host, bytes)
                    : find<CopyOut>("cuMemcpyDtoH_v2")(host, address(device), bytes),
          "cuMemcpy");
}

void Gpu::copy_after_event(void* device, const void* host, std::uint64_t bytes) {
    if (stream_ == nullptr) {
        check(find<MakeStream>("cuStreamCreate")(&stream_, kNonBlocking), "cuStreamCreate");
    }
    if (event_ == nullptr) {
        check(find<MakeEvent>("cuEventCreate")(&event_, kNoTiming), "cuEventCreate");
    }
    check(find<CopyInAsync>("cuMemcpyHtoDAsync_v2")(address(device), host, bytes, stream_),
          "cuMemcpyHtoDAsync");
    check(find<Record>("cuEventRecord")(event_, stream_), "cuEventRecord");
    check(find<OnEvent>("cuEventSynchronize")(event_), "cuEventSynchronize");
}

void Gpu::synchronise() {
    check(find<Plain>("cuCtxSynchronize")(), "cuCtxSynchronize");
}

double Gpu::copy_seconds(std::uint64_t bytes, std::uint64_t block, bool to_device) {
    constexpr std::uint64_t kWindow = std::uint64_t{16} << 20;
    const std::uint64_t window = std::max(kWindow, block);
    Memory host(window);
    const AnyMemory device = allocate(window);
    pin(host.data(), window);
    void* stream = nullptr;
    check(find<MakeStream>("cuStreamCreate")(&stream, kNonBlocking), "cuStreamCreate");
    const auto in = find<CopyInAsync>("cuMemcpyHtoDAsync_v2");
    const auto out = find<CopyOutAsync>("cuMemcpyDtoHAsync_v2");
    const auto wait = find<OnStream>("cuStreamSynchronize");
    const auto queue = [&](std::uint64_t at) {
        at = at % window / block * block;
        check(to_device ? in(address(device.data) + at, host.data() + at, block, stream)
                        : out(host.data() + at, address(device.data) + at, block, stream),
              "cuMemcpyAsync");
    };
    queue(0);
    check(wait(stream), "cuStreamSynchronize");
    const double start = now_s();
    for (std::uint64_t at = 0; at < bytes; at += block) {
        queue(at);
    }
    check(wait(stream), "cuStreamSynchronize");
    const double seconds = now_s() - start;
    check(find<OnStream>("cuStreamDestroy_v2")(stream), "cuStreamDestroy");
    find<Unregister>("cuMemHostUnregister")(pinned_.back());
    pinned_.pop_back();
    find<Free>("cuMemFree_v2")(allocated_.back());
    allocated_.pop_back();
    return seconds;
}

double Gpu::fake_cpu_s() const {
    return fake_ ? static_cast<double>(fake_->counters().engine_cpu_ns) * 1e-9 : 0;
}

void Gpu::report(Figures& figures) const {
    figures.set("gpu", fake_ ? "FAKE: " + name_ : name_);
}

}  // namespace penstock::benchmarks
