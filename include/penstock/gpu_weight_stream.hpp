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
// As much as fits stays in the memory of the GPU; of the rest, as much as fits stays in pinned host
// memory and is copied in each pass; the remainder is read from the files in each pass. Copies and
// reads go ahead of their use, into slots on the GPU.
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
        std::uint64_t copied_bytes = 0;  ///< of them, from host memory in each pass
        std::uint64_t read_bytes = 0;    ///< of them, from the files in each pass
    };
    std::vector<Unit> units;
    std::uint64_t resident_bytes = 0;  ///< device memory of the tensors that stay there, at most
    std::uint32_t slots = 0;           ///< of `slot_bytes` each; 0: everything stays on the GPU
    std::uint64_t slot_bytes = 0;
    std::uint64_t host_bytes = 0;    ///< pinned host memory of the tensors that stay there, at most
    std::uint64_t copied_bytes = 0;  ///< in each pass, of all units
    std::uint64_t read_bytes = 0;    ///< in each pass, of all units
    /// Device memory of residents and slots; at most the budget.
    [[nodiscard]] std::uint64_t device_bytes() const noexcept {
        return resident_bytes + slots * slot_bytes;
    }
};

/// Chooses what stays where: of each unit the same share as far as its tensors allow, first on the
/// GPU, then in host memory. The least device memory is least_weight_memory(); host memory may be
/// 0. Throws as plan_weights(). Thread-safe; needs no GPU.
[[nodiscard]] PENSTOCK_API GpuWeightPlan plan_gpu_weights(const TensorTable& table,
                                                          std::span<const WeightUnit> units,
                                                          std::uint64_t device_memory_bytes,
                                                          std::uint64_t host_memory_bytes,
                                                          std::uint32_t slots = 2);

struct GpuWeightStreamOptions {
    std::int32_t device = 0;                ///< CUDA's number of the GPU
    std::uint64_t device_memory_bytes = 0;  ///< for slots and residents together
    std::uint64_t host_memory_bytes = 0;    ///< pinned; the engine's slots are not part of it
    std::uint32_t slots = 2;                ///< see plan_weights()
    std::vector<std::vector<std::string>> copies = {};  ///< as WeightStreamOptions::copies
};

/// The tensors of a unit on the GPU.
struct GpuWeightView {
    /// In the order of WeightUnit::tensors, row-major, device memory. At the same address modulo 64
    /// as in their file, where that is a multiple of their element.
    std::vector<ConstMemory> tensors;
    /// Keeps the addresses allocated, not the content.
    std::vector<std::shared_ptr<void>> owners;
    /// The slot of the tensors that do not stay on the GPU, or WeightStream::kNoSlot.
    std::uint32_t slot = 0;
};

/// Counters since the stream was made.
struct GpuWeightStreamStats {
    std::uint64_t passes = 0;         ///< a pass ends when a unit comes again
    std::uint64_t acquired = 0;       ///< units
    std::uint64_t ready = 0;          ///< of them, without waiting for a file
    std::uint64_t on_demand = 0;      ///< of them, not begun ahead
    std::uint64_t bytes_read = 0;     ///< from files, without what stays
    std::uint64_t bytes_copied = 0;   ///< from pinned host memory
    std::vector<std::int64_t> stall;  ///< of each unit: nanoseconds of waiting for its files
    std::vector<WeightFolderStats> folders;
};

/// Streams the units of a model to a GPU. The order of units is learned as by WeightStream. One
/// thread at a time; in the child of a fork() calls throw kUnsupported. Streams are of the primary
/// context of the GPU, which torch, CuPy and the CUDA runtime use; the default one is the legacy
/// default stream. Movable.
class PENSTOCK_API GpuWeightStream {
public:
    /// Opens the files, allocates, reads what stays, and begins to read ahead. Throws Error: those
    /// of plan_weights(); kUnsupported where there is no GPU, or a tensor has strides;
    /// kInvalidArgument for a GPU that is not there; kOutOfMemory where the GPU has no room or host
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
    /// Waits until what is read from files is there, and makes `stream` wait on the GPU for what is
    /// copied from host memory. The unit stays until release(). A unit that was not begun ahead is
    /// read at once, before others. Throws Error: kInvalidArgument when more units are held than
    /// there are slots; kDamaged for a file that was changed, found once a pass; errors of reading,
    /// with the file and a tensor; errors of the GPU. The next acquire() tries again.
    const GpuWeightView& acquire(std::size_t unit, const StreamHandle& stream = {});
    /// The same, or nullptr when the time is over; reading goes on.
    const GpuWeightView* acquire_for(std::size_t unit, std::chrono::nanoseconds timeout,
                                     const StreamHandle& stream = {});
    /// Its slot is used for other units once `stream` has passed what it holds now; no thread waits
    /// for that. As often as acquire(). After an error of the GPU the unit is still held.
    void release(std::size_t unit, const StreamHandle& stream = {});
    [[nodiscard]] GpuWeightStreamStats stats() const;
    /// Cancels what is being read, and waits for the copies that are under way, which streams that
    /// released units may hold up (10 s at most). Later calls throw kClosed. Again is fine.
    void close() noexcept;

private:
    std::unique_ptr<weights::GpuStreaming> impl_;
};

}  // namespace penstock
