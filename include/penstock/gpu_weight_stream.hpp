// SPDX-License-Identifier: Apache-2.0
// Weights of a model that is larger than the memory of a GPU, streamed to it in each pass.
//
//     penstock::GpuWeightStream weights(engine, table, units,
//                                       {.device = 0, .device_memory_bytes = 40ull << 30,
//                                        .host_memory_bytes = 64ull << 30});
//     for (std::size_t unit = 0; unit < units.size(); ++unit) {            // a pass
//         const auto& layer = weights.acquire(unit, {.handle = stream});   // `stream` waits for it
//         launch(layer.tensors, stream);
//         weights.release(unit, {.handle = stream});                       // once `stream` passes
//     }
//
// As many weights as fit stay in the memory of the GPU. Of the others, as many as fit stay in
// pinned host memory and are copied in each pass. The rest is read from the files in each pass.
// Copies and reads are made ahead of their use, into slots on the GPU.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/gpu.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/weight_stream.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock {

namespace weights {
class GpuStreaming;
}  // namespace weights

/// The tier of memory that each tensor of a model stays in.
struct GpuWeightPlan {
    struct Unit {
        std::string name;
        std::uint64_t bytes = 0;         ///< of its tensors
        std::uint64_t copied_bytes = 0;  ///< copied from host memory in each pass
        std::uint64_t read_bytes = 0;    ///< read from the files in each pass
    };
    std::vector<Unit> units;
    std::uint64_t resident_bytes = 0;  ///< limit on device memory of the tensors that stay there
    std::uint32_t slots = 0;           ///< of `slot_bytes` each; 0: everything stays on the GPU
    std::uint64_t slot_bytes = 0;
    std::uint64_t host_bytes = 0;    ///< limit on pinned host memory of the tensors that stay there
    std::uint64_t copied_bytes = 0;  ///< in each pass, of all units
    std::uint64_t read_bytes = 0;    ///< in each pass, of all units
    /// Device memory of residents and slots; at most the budget.
    [[nodiscard]] std::uint64_t device_bytes() const noexcept {
        return resident_bytes + slots * slot_bytes;
    }
};

/// Chooses the place of each tensor: first the GPU, then host memory. Each keeps the same share of
/// every unit, as far as the sizes of tensors allow. The minimum of device memory is
/// least_weight_memory(); host memory may be 0. Throws as plan_weights(). Thread-safe, and needs no
/// GPU.
[[nodiscard]] PENSTOCK_API GpuWeightPlan plan_gpu_weights(const TensorTable& table,
                                                          std::span<const WeightUnit> units,
                                                          std::uint64_t device_memory_bytes,
                                                          std::uint64_t host_memory_bytes,
                                                          std::uint32_t slots = 2);

struct GpuWeightStreamOptions {
    std::int32_t device = 0;                ///< the CUDA number of the GPU
    std::uint64_t device_memory_bytes = 0;  ///< for slots and residents together
    std::uint64_t host_memory_bytes = 0;    ///< pinned; the engine's slots are not part of it
    std::uint32_t slots = 2;                ///< see plan_weights()
    std::vector<std::vector<std::string>> copies = {};  ///< as WeightStreamOptions::copies
};

/// The tensors of a unit on the GPU.
struct GpuWeightView {
    /// In the order of WeightUnit::tensors, row-major, in device memory. A tensor that is aligned
    /// to its elements in the file has the same address modulo 64 as there.
    std::vector<ConstMemory> tensors;
    /// Keeps the addresses allocated, not the content.
    std::vector<std::shared_ptr<void>> owners;
    /// The slot of the tensors that do not stay on the GPU, or WeightStream::kNoSlot.
    std::uint32_t slot = 0;
};

/// Counters since the stream was made.
struct GpuWeightStreamStats {
    std::uint64_t passes = 0;         ///< a pass ends when a unit is repeated
    std::uint64_t acquired = 0;       ///< acquired units
    std::uint64_t ready = 0;          ///< of them, those that did not wait for a file
    std::uint64_t on_demand = 0;      ///< of them, those that were not read ahead
    std::uint64_t bytes_read = 0;     ///< from files, without the tensors that stay
    std::uint64_t bytes_copied = 0;   ///< from pinned host memory
    std::vector<std::int64_t> stall;  ///< for each unit: nanoseconds of waiting for its files
    std::vector<WeightFolderStats> folders;
};

/// Streams the units of a model to a GPU. The order of units is learned as by WeightStream. One
/// thread at a time; in the child of a fork() calls throw kUnsupported. Streams are of the primary
/// context of the GPU, which torch, CuPy and the CUDA runtime use; the default one is the legacy
/// default stream. Movable.
class PENSTOCK_API GpuWeightStream {
public:
    /// Opens the files, allocates, reads the tensors that stay, and begins to read ahead. Throws
    /// Error: those of plan_weights(); kUnsupported without a GPU, or for a tensor with strides;
    /// kInvalidArgument for a GPU that does not exist; kOutOfMemory if the GPU has no room or host
    /// memory cannot be pinned; errors of the system.
    GpuWeightStream(std::shared_ptr<Engine> engine, const TensorTable& table,
                    std::vector<WeightUnit> units, const GpuWeightStreamOptions& options,
                    const FileSystem& files = FileSystem::local());
    GpuWeightStream(GpuWeightStream&& other) noexcept;
    GpuWeightStream& operator=(GpuWeightStream&& other) noexcept;
    GpuWeightStream(const GpuWeightStream&) = delete;
    GpuWeightStream& operator=(const GpuWeightStream&) = delete;
    /// As close().
    ~GpuWeightStream();

    [[nodiscard]] const GpuWeightPlan& plan() const;
    /// Waits until the unit's bytes from files are there, and makes `stream` wait on the GPU for
    /// the copies from host memory. The unit stays until release(). A unit that was not read ahead
    /// is read at once, before others. Throws Error: kInvalidArgument if more units are held than
    /// there are slots; kDamaged for a file that was changed, checked once a pass; errors of
    /// reading, with the file and a tensor; errors of the GPU. The next acquire() tries again.
    const GpuWeightView& acquire(std::size_t unit, const StreamHandle& stream = {});
    /// The same, or nullptr when the time is over; reading continues.
    const GpuWeightView* acquire_for(std::size_t unit, std::chrono::nanoseconds timeout,
                                     const StreamHandle& stream = {});
    /// Releases a unit, once for each acquire(). Its slot is reused after the work that `stream`
    /// holds now; no thread waits for that. After an error of the GPU the unit is still held.
    void release(std::size_t unit, const StreamHandle& stream = {});
    [[nodiscard]] GpuWeightStreamStats stats() const;
    /// Cancels running reads, and waits for running copies, at most 10 s: streams that released
    /// units may delay them. Later calls throw kClosed. May be called again.
    void close() noexcept;

private:
    std::unique_ptr<weights::GpuStreaming> impl_;
};

}  // namespace penstock
