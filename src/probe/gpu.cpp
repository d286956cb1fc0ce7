// SPDX-License-Identifier: Apache-2.0
#include "probe/gpu.hpp"

#include "base/align.hpp"
#include "base/clock.hpp"
#include "probe/scratch.hpp"

#include <penstock/memory.hpp>

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <vector>

namespace penstock::probe {

namespace {

constexpr std::uint64_t kAlign = 4096;
constexpr const char* kLibrary = "libcuda.so.1";
constexpr const char* kSetRate = "fake_gpu_set_rate";  // a function that NVIDIA's does not have
constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20;
constexpr std::chrono::seconds kPatience(10);  // a GPU that takes longer does not answer any more

using SetRate = void(double in, double out, std::uint32_t latency_us);

Error gpu_error(ErrorCode code, const std::string& message) {
    return {code, 0, "gpu", {}, kNoOffset, message};
}

// Pinned memory of the host, a stream, and a mark for each half of the window.
class Copies {
public:
    Copies(std::int32_t device, std::uint64_t block_bytes, bool write)
        : device_(device),
          block_bytes_(block_bytes),
          batch_(std::max<std::uint64_t>(1, kBatchBytes / block_bytes)),
          host_(Region::pinned(2 * batch_ * block_bytes, device)),
          gpu_(device, 2 * batch_ * block_bytes),
          stream_(device) {
        for (std::uint64_t i = 0; i < 2 * batch_; ++i) {
            const Memory host = host_.memory(i * block_bytes, block_bytes);
            const Memory gpu{gpu_.data() + i * block_bytes, block_bytes, MemoryKind::kDevice,
                             device};
            copies_.push_back(write ? MemoryCopy{host, gpu} : MemoryCopy{gpu, host});
        }
    }
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;
    ~Copies() {
        if (!stream_.wait_until_idle(kPatience)) {
            host_.leave();  // the copies may still use it
        }
    }

    // Queues the copies of one half, and returns their bytes.
    std::uint64_t queue(std::size_t half) {
        stream_.copy(std::span(copies_).subspan(half * batch_, batch_));
        const StreamHandle stream = stream_.handle();
        marks_.at(half) = StreamMark({&stream, 1}, {&device_, 1});
        return batch_ * block_bytes_;
    }

    void wait(std::size_t half, Watch& watch) {
        watch.check();
        marks_.at(half).wait();
    }

private:
    std::int32_t device_;
    std::uint64_t block_bytes_;
    std::uint64_t batch_;
    Region host_;
    GpuMemory gpu_;
    GpuStream stream_;
    std::vector<MemoryCopy> copies_;
    std::array<StreamMark, 2> marks_;
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

GpuMemory::GpuMemory(std::int32_t device, std::uint64_t bytes)
    : memory_(Region::gpu(bytes + kAlign - 1, device)),
      bytes_(bytes),
      data_(memory_.data() +
            (base::align_up(memory_.gpu_address(), kAlign) - memory_.gpu_address())) {}

void GpuMemory::fill() {
    const Buffer host = MemoryPool().take(std::min(kBatchBytes, bytes_));
    for (std::uint64_t at = 0; at < bytes_; at += host.size()) {
        const std::uint64_t count = std::min(host.size(), bytes_ - at);
        fill_random(host.bytes().first(count), at + 1);
        const MemoryCopy copy{{data_ + at, count, MemoryKind::kDevice, memory_.device()},
                              {host.data(), count}};
        copy_memory({&copy, 1});
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
