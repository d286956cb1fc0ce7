// SPDX-License-Identifier: Apache-2.0
#include "probe/gpu.hpp"

#include "base/align.hpp"
#include "base/clock.hpp"
#include "base/raise.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "probe/scratch.hpp"

#include <penstock/memory.hpp>

#include <dlfcn.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>

namespace penstock::probe {

using namespace device::cuda;  // NVIDIA's names, as in its documents
using device::Driver;

namespace {

constexpr std::uint64_t kAlign = 4096;
constexpr const char* kLibrary = "libcuda.so.1";
constexpr const char* kSetRate = "fake_gpu_set_rate";  // a function that NVIDIA's does not have
constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20;
constexpr long kNapNs = 20'000;

using SetRate = void(double in, double out, std::uint32_t latency_us);

Error gpu_error(ErrorCode code, const std::string& message) {
    return {code, 0, "gpu", {}, kNoOffset, message};
}

void check(const Driver& driver, CUresult result, const char* call) {
    if (result != CUDA_SUCCESS) {
        base::raise(device::cuda_error(driver, result, call, "gpu", "measuring"));
    }
}

CUdeviceptr address_of(const std::byte* memory) {
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
}

// The driver with the primary context of a GPU, current while this lives.
class Use {
public:
    explicit Use(std::int32_t device)
        : driver_(*base::unwrap(device::driver())),
          current_(driver_, base::unwrap(device::primary_context(driver_, device))) {
        check(driver_, current_.result(), "cuCtxPushCurrent");
    }
    [[nodiscard]] const Driver& driver() const { return driver_; }

private:
    const Driver& driver_;
    device::Current current_;
};

void nap() {
    const timespec time{0, kNapNs};
    ::nanosleep(&time, nullptr);
}

// Pinned memory of the host, a stream, and an event for each half of the window.
class Copies {
public:
    Copies(std::int32_t device, std::uint64_t block_bytes, bool write)
        : use_(device),
          block_bytes_(block_bytes),
          batch_(std::max<std::uint64_t>(1, kBatchBytes / block_bytes)),
          write_(write),
          host_(MemoryPool().take(2 * batch_ * block_bytes)),
          gpu_(device, 2 * batch_ * block_bytes) {
        const Driver& driver = use_.driver();
        check(driver, driver.cuMemHostRegister(host_.data(), host_.bytes().size(), 0),
              "cuMemHostRegister");
        is_pinned_ = true;
        check(driver, driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        for (CUevent& event : events_) {
            check(driver, driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        }
    }
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;
    ~Copies() {
        const Driver& driver = use_.driver();
        while (stream_ != nullptr && driver.cuStreamQuery(stream_) == CUDA_ERROR_NOT_READY) {
            nap();
        }
        for (CUevent event : events_) {
            if (event != nullptr) {
                driver.cuEventDestroy(event);
            }
        }
        if (stream_ != nullptr) {
            driver.cuStreamDestroy(stream_);
        }
        if (is_pinned_) {
            driver.cuMemHostUnregister(host_.data());
        }
    }

    // Queues the copies of one half, and returns their bytes.
    std::uint64_t queue(std::size_t half) {
        const Driver& driver = use_.driver();
        for (std::uint64_t i = 0; i < batch_; ++i) {
            const std::uint64_t at = (half * batch_ + i) * block_bytes_;
            std::byte* const host = host_.data() + at;
            const CUdeviceptr gpu = address_of(gpu_.data() + at);
            check(driver,
                  write_ ? driver.cuMemcpyDtoHAsync(host, gpu, block_bytes_, stream_)
                         : driver.cuMemcpyHtoDAsync(gpu, host, block_bytes_, stream_),
                  "cuMemcpyAsync");
        }
        check(driver, driver.cuEventRecord(events_.at(half), stream_), "cuEventRecord");
        return batch_ * block_bytes_;
    }

    void wait(std::size_t half, Watch& watch) {
        CUresult result = CUDA_ERROR_NOT_READY;
        while ((result = use_.driver().cuEventQuery(events_.at(half))) == CUDA_ERROR_NOT_READY) {
            watch.check();
            nap();
        }
        check(use_.driver(), result, "cuEventQuery");
    }

private:
    Use use_;
    std::uint64_t block_bytes_;
    std::uint64_t batch_;
    bool write_;
    Buffer host_;
    GpuMemory gpu_;
    bool is_pinned_ = false;
    CUstream stream_ = nullptr;
    std::array<CUevent, 2> events_{};
};

}  // namespace

void load_fake_gpu(const std::string& path, double bytes_per_s) {
    if (::dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD) != nullptr && !gpu_is_fake()) {
        throw gpu_error(ErrorCode::kInvalidArgument,
                        "a CUDA driver is loaded already, so the fake one cannot be");
    }
    // The next that asks for libcuda.so.1 gets this library, for that is its name.
    void* library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        const char* said = ::dlerror();
        throw gpu_error(ErrorCode::kSystem, fmt::format("the fake CUDA driver cannot be loaded: {}",
                                                        said == nullptr ? path.c_str() : said));
    }
    auto* set_rate = reinterpret_cast<SetRate*>(::dlsym(library, kSetRate));
    if (set_rate == nullptr || !gpu_is_fake()) {
        throw gpu_error(ErrorCode::kInvalidArgument,
                        path + " is not the fake CUDA driver (tests/fake_gpu, target fake_cuda)");
    }
    set_rate(bytes_per_s, bytes_per_s, 0);
}

bool gpu_is_fake() noexcept {
    void* library = ::dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) {
        return false;
    }
    const bool fake = ::dlsym(library, kSetRate) != nullptr;
    ::dlclose(library);
    return fake;
}

GpuMemory::GpuMemory(std::int32_t device, std::uint64_t bytes) : device_(device), bytes_(bytes) {
    const Use use(device);
    CUdeviceptr memory = 0;
    check(use.driver(), use.driver().cuMemAlloc(&memory, bytes + kAlign - 1), "cuMemAlloc");
    base_ = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(memory));
    data_ = base_ + (base::align_up(std::uint64_t{memory}, kAlign) - memory);
}

GpuMemory::~GpuMemory() {
    try {
        const Use use(device_);
        use.driver().cuMemFree(address_of(base_));
    } catch (const Error&) {  // the context is gone, and the memory with it
        base_ = nullptr;
    }
}

void GpuMemory::fill() {
    const Use use(device_);
    const Driver& driver = use.driver();
    const Buffer host = MemoryPool().take(std::min(kBatchBytes, bytes_));
    for (std::uint64_t at = 0; at < bytes_; at += host.bytes().size()) {
        const std::uint64_t count = std::min<std::uint64_t>(host.bytes().size(), bytes_ - at);
        fill_random(host.bytes().first(count), at + 1);
        check(driver, driver.cuMemcpyHtoDAsync(address_of(data_ + at), host.data(), count, nullptr),
              "cuMemcpyHtoDAsync");
        CUresult result = CUDA_ERROR_NOT_READY;
        while ((result = driver.cuStreamQuery(nullptr)) == CUDA_ERROR_NOT_READY) {
            nap();
        }
        check(driver, result, "cuStreamQuery");
    }
}

Sample run_copies(std::int32_t device, std::uint64_t block_bytes, bool write, double seconds,
                  Watch& watch) {
    Copies copies(device, block_bytes, write);
    for (const std::size_t half : {0, 1}) {  // the first use of memory and stream is not measured
        copies.queue(half);
    }
    copies.wait(0, watch);
    copies.wait(1, watch);
    const base::SteadyClock clock;
    Sample sample;
    sample.side = "pinned copy";
    const base::Nanos start = clock.now();
    const base::Nanos end = start + static_cast<base::Nanos>(seconds * 1e9);
    std::array<std::uint64_t, 2> queued{copies.queue(0), copies.queue(1)};
    for (std::size_t half = 0; queued.at(half) != 0; half = 1 - half) {
        copies.wait(half, watch);
        sample.bytes += queued.at(half);
        const base::Nanos now = clock.now();
        queued.at(half) = now < end ? copies.queue(half) : 0;
        sample.seconds = static_cast<double>(now - start) * 1e-9;
        if (watch.due()) {
            watch.moved(sample.bytes, sample.seconds);
        }
    }
    sample.operations = sample.bytes / block_bytes;
    return sample;
}

}  // namespace penstock::probe
