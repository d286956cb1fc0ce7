// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU to measure with, and what pinned copies to and from it give. The driver is
// NVIDIA's, or the fake one of the development build.
#pragma once

#include "probe/job.hpp"
#include "probe/watch.hpp"

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>
#include <penstock/types.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace penstock::probe {

/// Loads the fake driver at `path`, a libcuda.so.1: from now on it is the driver of this process.
/// Its copy engines move so many bytes a second each. Throws Error: kSystem where there is no such
/// library, kInvalidArgument where it is not the fake, or another driver is loaded already.
void load_fake_gpu(const std::string& path, double bytes_per_s);

/// Whether the driver of this process is the fake one. False before a driver is loaded.
[[nodiscard]] bool gpu_is_fake() noexcept;

/// Memory of one GPU, freed at the end. It begins at a multiple of 4 KiB, as cuFile wants it.
class GpuMemory {
public:
    /// Throws Error, with the driver's words.
    GpuMemory(std::int32_t device, std::uint64_t bytes);

    [[nodiscard]] std::byte* data() const { return data_; }
    /// Random bytes; waits until they are there.
    void fill();

private:
    Region memory_;
    std::uint64_t bytes_;
    std::byte* data_;
};

/// Copies between pinned memory of the host and GPU `device`, `block_bytes` each, for
/// `seconds`; `write`: from the GPU. Enough are queued that the copy engine never waits for us.
/// Throws Error and what `watch` throws.
[[nodiscard]] Sample run_copies(std::int32_t device, std::uint64_t block_bytes, bool write,
                                double seconds, Watch& watch);

}  // namespace penstock::probe
