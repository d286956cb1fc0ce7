// SPDX-License-Identifier: Apache-2.0
// Models larger than memory: units of weights, read ahead of their use.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/gpu.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

// A model whose files are in several folders on several devices: spread shards, copies, or copies
// of some shards. Files that several folders have are read from all of them concurrently.
//
//     const penstock::WeightFolders model =
//         penstock::inspect_folders(engine, {"/nvme0/model", "/nvme1/model"});
//     penstock::WeightStream weights(engine, model.table, penstock::find_weight_units(model.table),
//                                    {.memory_bytes = 8ull << 30, .copies = model.copies});

/// The tensors of a model, and the copies of its files.
struct WeightFolders {
    TensorTable table;  ///< of the first copy of each file
    /// For each of `table.files`: its path in each folder; empty if the folder does not have it.
    std::vector<std::vector<std::string>> copies;
};

/// Finds `model.safetensors.index.json`, else the only index, else the only `.safetensors` of the
/// folders, and each shard in all folders that have it. Reads headers and no tensor. A single name
/// may also be that of a file or an index. Throws Error: kInvalidArgument if nothing is found, if a
/// shard is in no folder, and, with both names, if copies differ in their size or header; otherwise
/// as inspect(). Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API WeightFolders
inspect_folders(const std::shared_ptr<Engine>& engine, const std::vector<std::string>& folders,
                const FileSystem& files = FileSystem::local());

/// The local cache of Hugging Face: HF_HUB_CACHE; else `hub` in HF_HOME; else `huggingface/hub` in
/// XDG_CACHE_HOME or ~/.cache. It need not exist. Thread-safe.
[[nodiscard]] PENSTOCK_API std::string hub_cache_folder();

/// The folder of a model in hub_cache_folder() by its name, "organization/name" or "name": the
/// snapshot that is `main`. Empty if it is not there; nothing is downloaded. Throws the errors of
/// the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API std::string find_hub_model(
    Engine& engine, const std::string& name, const FileSystem& files = FileSystem::local());

// Tensors of a table that are joined from parts of other tensors: the experts of a layer that were
// saved one by one, or one part of a fused product.
//
//     const std::vector<penstock::JoinedTensor> joined{
//         {"down", {2, 64, 32}, {{"experts.0.down", 0, 4096}, {"experts.1.down", 0, 4096}}}};
//     penstock::join_tensors(table, joined);
//
// Nothing is read or copied: the table says where the bytes of a joined tensor are, and they are
// read from there.

/// Contiguous bytes of a tensor of a table.
struct TensorPart {
    std::string tensor;        ///< its name
    std::uint64_t offset = 0;  ///< in bytes, from its first element
    std::uint64_t bytes = 0;
};

struct JoinedTensor {
    std::string name;
    std::vector<std::uint64_t> shape;  ///< in elements; row-major
    std::vector<TensorPart> parts;     ///< its bytes, in their order
};

/// Adds tensors to a table. They have the dtype of their parts, which may be parts of tensors that
/// were joined before. Throws Error, and then does not change the table: kInvalidArgument for a
/// name that the table already has, for no parts, for a part of an unknown tensor or beyond its
/// end, for different dtypes, and for a shape with another number of bytes; kUnsupported for a
/// tensor with strides. Thread-safe for different tables.
PENSTOCK_API void join_tensors(TensorTable& table, std::span<const JoinedTensor> joined);

// Weights of a model that is larger than memory, streamed from its files in each pass.
//
//     auto table = penstock::inspect(engine, "model/");
//     penstock::WeightStream weights(engine, table, units, {.memory_bytes = 8ull << 30});
//     for (std::size_t unit = 0; unit < units.size(); ++unit) {       // a pass
//         const penstock::WeightView& layer = weights.acquire(unit);  // waits for its bytes
//         compute(layer.tensors);
//         weights.release(unit);
//     }
//
// A part of the weights stays in memory. The rest is read in each pass, ahead of its use, into the
// same slots again. The files are the user's own and are not changed.

namespace weights {
class Streaming;
}  // namespace weights

/// Tensors that are used together: a layer of a model.
struct WeightUnit {
    std::string name;                  ///< "model.layers.0"; for messages
    std::vector<std::string> tensors;  ///< their names in the table; a tensor may be in several
};

/// The share of memory and of reads for each unit.
struct WeightPlan {
    struct Unit {
        std::string name;
        std::uint64_t bytes = 0;       ///< of its tensors
        std::uint64_t read_bytes = 0;  ///< read in each pass; the others stay in memory
    };
    std::vector<Unit> units;
    std::uint64_t memory_bytes = 0;    ///< the budget
    std::uint64_t resident_bytes = 0;  ///< memory of the tensors that stay, in whole pages
    std::uint32_t slots = 0;           ///< of `slot_bytes` each; 0: everything stays
    std::uint64_t slot_bytes = 0;
    std::uint64_t read_bytes = 0;  ///< in each pass, of all units
    /// Memory that residents and slots take; at most `memory_bytes`.
    [[nodiscard]] std::uint64_t used_bytes() const noexcept {
        return resident_bytes + slots * slot_bytes;
    }
};

/// Chooses the tensors that stay in memory, so that a pass reads as little as possible. Of equal
/// layers it keeps the same share of each: access is cyclic, so a cache that drops the least
/// recently used would never hit. `slots`: 2 or more; each above 2 reads one unit further ahead.
/// Throws Error: kInvalidArgument for an unknown tensor; kOutOfMemory for a budget that is too
/// small, with the minimum and the unit that requires it. Thread-safe.
[[nodiscard]] PENSTOCK_API WeightPlan plan_weights(const TensorTable& table,
                                                   std::span<const WeightUnit> units,
                                                   std::uint64_t memory_bytes,
                                                   std::uint32_t slots = 2);

/// The minimum budget of plan_weights(). Throws kInvalidArgument as there. Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t least_weight_memory(const TensorTable& table,
                                                             std::span<const WeightUnit> units,
                                                             std::uint32_t slots = 2);

/// The budget of plan_weights() with which all tensors stay. Throws as there. Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t most_weight_memory(const TensorTable& table,
                                                            std::span<const WeightUnit> units);

/// Bytes that the process could take in addition to what it has; negative: bytes to give back.
using SpareMemory = std::function<std::int64_t()>;

/// Returns a function for available_memory_bytes() minus `reserve_bytes`, which the program's code,
/// its other memory and the page cache need. While threads wait for memory for more than a tenth of
/// the time (memory_stall()), it returns at most -1. One thread at a time may call it.
[[nodiscard]] PENSTOCK_API SpareMemory spare_memory(std::uint64_t reserve_bytes);

struct WeightStreamOptions {
    std::uint64_t memory_bytes = 0;  ///< for slots and resident tensors together
    std::uint32_t slots = 2;         ///< see plan_weights()
    Progress progress = {};          ///< of reading the resident tensors
    /// WeightFolders::copies. Files that several folders have are read from all of them
    /// concurrently, in the ratio of their speeds. The speeds are measured when the stream is made,
    /// and corrected by which folder finishes first. Empty: only the files of the table.
    std::vector<std::vector<std::string>> copies = {};
    /// If given, the budget follows it. acquire() calls it while no unit is held, at most once in
    /// `spare_interval`. Missing bytes are given back at once, down to the minimum that works. Half
    /// of the spare bytes are taken at the beginning of a pass.
    SpareMemory spare = {};
    std::chrono::nanoseconds spare_interval = std::chrono::milliseconds(100);
};

/// The tensors of a unit in memory.
struct WeightView {
    /// In the order of WeightUnit::tensors, row-major. A tensor that is aligned to its elements in
    /// the file has the same address modulo 4096 as there; others begin at a multiple of 64.
    std::vector<std::span<const std::byte>> tensors;
    /// Keeps the addresses mapped, not the content.
    std::vector<std::shared_ptr<void>> owners;
    /// The slot of the tensors that were read, or WeightStream::kNoSlot.
    std::uint32_t slot = 0;
    /// Rises when the budget changes. With the same slot and layout, a unit has the same addresses.
    std::uint64_t layout = 0;
};

/// A folder of WeightStreamOptions::copies.
struct WeightFolderStats {
    double bytes_per_second = 0;   ///< as measured; 0: there is only one copy of each file
    std::uint64_t bytes_read = 0;  ///< without the resident tensors
    /// Of them, those of files without direct I/O. They pass through the page cache: a processor
    /// copies each of them once more, and they take memory that the budget does not count.
    std::uint64_t buffered_bytes = 0;
    std::string buffered_because;  ///< why a file has no direct I/O; empty: all have
};

/// Counters since the stream was made.
struct WeightStreamStats {
    std::uint64_t passes = 0;         ///< a pass ends when a unit is repeated
    std::uint64_t acquired = 0;       ///< acquired units
    std::uint64_t ready = 0;          ///< of them, those without waiting
    std::uint64_t on_demand = 0;      ///< of them, those that were not read ahead
    std::uint64_t bytes_read = 0;     ///< without the resident tensors
    std::vector<std::int64_t> stall;  ///< for each unit: nanoseconds of waiting
    std::vector<WeightFolderStats> folders;
    std::int64_t running = 0;        ///< nanoseconds in passes: from the first acquire() to the
                                     ///< last release() of each
    std::uint64_t needed_bytes = 0;  ///< that the acquired units needed from files
    /// The rate of reading while the files never idled: while one unit after the other was waited
    /// for. 0: that has not happened.
    double bytes_per_second = 0;
};

/// The share of the bound that passes reach, from 0 to 1. No pass is faster than reading alone
/// (`bytes` at `bytes_per_second`) or computing alone (the seconds that are not waited). If the
/// rate is not known (0), the result is a lower bound. 1 for 0 seconds. Thread-safe.
[[nodiscard]] PENSTOCK_API double share_of_bound(double seconds, double waited_seconds,
                                                 double bytes, double bytes_per_second);

/// Streams the units of a model. The first pass is read ahead in the order of the list, later
/// passes in the order in which units were acquired last. Units that stay in memory as a whole may
/// come at any time. Of units that nobody expected, few that were read ahead are read twice. One
/// thread at a time; in the child of a fork() calls throw kUnsupported, and the parent continues.
/// Movable.
class PENSTOCK_API WeightStream {
public:
    static constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};

    /// Opens the files, reads the resident tensors, and begins to read ahead. Throws Error: those
    /// of plan_weights(); kUnsupported for a tensor with strides; errors of the system.
    WeightStream(std::shared_ptr<Engine> engine, const TensorTable& table,
                 std::vector<WeightUnit> units, const WeightStreamOptions& options,
                 const FileSystem& files = FileSystem::local());
    WeightStream(WeightStream&& other) noexcept;
    WeightStream& operator=(WeightStream&& other) noexcept;
    WeightStream(const WeightStream&) = delete;
    WeightStream& operator=(const WeightStream&) = delete;
    /// Cancels running reads and waits for them.
    ~WeightStream();

    [[nodiscard]] const WeightPlan& plan() const;
    /// Waits until the unit is in memory, where it stays until release(). A unit that was not read
    /// ahead is read at once, before others. Throws Error: kInvalidArgument if more units are held
    /// than there are slots; kDamaged for a file that was changed, checked once a pass; errors of
    /// reading, with the file and a tensor. The next acquire() tries again.
    const WeightView& acquire(std::size_t unit);
    /// The same, or nullptr when the time is over; reading continues.
    const WeightView* acquire_for(std::size_t unit, std::chrono::nanoseconds timeout);
    /// Releases a unit, once for each acquire(). Its slot is reused for the next units.
    void release(std::size_t unit);
    /// Changes the budget at the first acquire() while no unit is held: tensors are dropped, or
    /// read. It then follows `spare`; without `spare` it is fixed. Throws as plan_weights().
    void set_memory(std::uint64_t memory_bytes, SpareMemory spare = {});
    [[nodiscard]] WeightStreamStats stats() const;
    /// Does the same as the destructor. Later calls throw kClosed. May be called again.
    void close() noexcept;

private:
    std::unique_ptr<weights::Streaming> impl_;
};

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

// The experts of a mixture that is larger than memory: only experts that the router chose are read.
//
//     penstock::ExpertStream experts(engine, table, layers, {.memory_bytes = 4ull << 30});
//     for (auto chosen = router(x); !chosen.empty();) {               // in a layer
//         const auto views = experts.acquire(layer, chosen);          // the first ones that fit
//         for (const penstock::ExpertView& view : views) { compute(view.parts); }
//         experts.release();
//         chosen = chosen.subspan(views.size());
//     }
//
// Frequently chosen experts stay in a cache that all layers share.

namespace weights {
class StreamingExperts;
}  // namespace weights

/// The experts of a layer, all of the same number of parts.
struct ExpertLayer {
    std::string name;  ///< "model.layers.0.mlp.experts"; for messages
    /// Each expert: its tensors, or its part of each tensor that all experts of the layer share.
    std::vector<std::vector<TensorPart>> experts;
};

struct ExpertStreamOptions {
    std::uint64_t memory_bytes = 0;                     ///< for the slots of experts
    std::vector<std::vector<std::string>> copies = {};  ///< as WeightStreamOptions::copies
    /// If given, the budget follows it, as WeightStreamOptions::spare. With a larger reserve than
    /// that of a WeightStream, experts give memory back first and grow last.
    SpareMemory spare = {};
    std::chrono::nanoseconds spare_interval = std::chrono::milliseconds(100);
    /// Experts that the next layer will likely need are read while this layer computes, in the
    /// class kBackground, into at most a quarter of the slots. They are predicted from earlier
    /// choices that followed the present one. A prediction is used only if at least half of its
    /// recent guesses were right. Takes a byte for each pair of experts of adjoining layers.
    bool read_likely = true;
};

/// An expert in memory.
struct ExpertView {
    /// Its bytes, in the order of ExpertLayer::experts. They have the same address modulo 64 as if
    /// the whole tensor were mapped from its file (a joined tensor: began at a multiple of 64).
    std::vector<std::span<const std::byte>> parts;
    std::shared_ptr<void> owner;  ///< keeps the addresses mapped, not the content
    std::uint32_t slot = 0;
};

/// Counters since the stream was made.
struct ExpertStreamStats {
    std::uint64_t hits = 0;       ///< experts that were in memory, or being read
    std::uint64_t misses = 0;     ///< experts that were read when they were needed
    std::uint64_t transfers = 0;  ///< transfers of these reads
    std::uint64_t bytes_read = 0;
    std::uint64_t likely_reads = 0;  ///< experts that were read because they were likely
    std::uint64_t likely_hits = 0;   ///< of them, chosen by the next layer; they are hits too
    std::uint64_t slots = 0;         ///< experts that fit
    std::uint64_t slot_bytes = 0;    ///< memory of each
    std::int64_t stall = 0;          ///< nanoseconds of waiting
    std::vector<WeightFolderStats> folders;  ///< as WeightStreamStats::folders
};

/// Streams experts. One thread at a time; in the child of a fork() calls throw kUnsupported, and
/// the parent continues. Movable.
class PENSTOCK_API ExpertStream {
public:
    /// Opens the files and reads nothing. Throws Error: kInvalidArgument for a tensor that the
    /// table does not have or a part beyond its end; kUnsupported for a tensor with strides;
    /// kOutOfMemory for a budget of less than least_expert_memory(); errors of the system.
    ExpertStream(std::shared_ptr<Engine> engine, const TensorTable& table,
                 std::vector<ExpertLayer> layers, const ExpertStreamOptions& options,
                 const FileSystem& files = FileSystem::local());
    ExpertStream(ExpertStream&& other) noexcept;
    ExpertStream& operator=(ExpertStream&& other) noexcept;
    ExpertStream(const ExpertStream&) = delete;
    ExpertStream& operator=(const ExpertStream&) = delete;
    /// Cancels what is being read and waits for it.
    ~ExpertStream();

    /// Waits until the first of `experts` are in memory, as many as there is room for and at least
    /// one, and holds them until release(). All missing ones are read by one transfer. If not all
    /// fit, the next ones are read meanwhile. Throws Error: kInvalidArgument for unknown or
    /// repeated numbers, for no experts, and for experts that are already held; kDamaged for a file
    /// that was changed, checked once a pass (a pass begins when the layer is not later than the
    /// last one); errors of reading, with the file and a tensor. The next acquire() tries again.
    std::vector<ExpertView> acquire(std::size_t layer, std::span<const std::size_t> experts);
    /// The same, or nothing when the time is over; reading continues.
    std::optional<std::vector<ExpertView>> acquire_for(std::size_t layer,
                                                       std::span<const std::size_t> experts,
                                                       std::chrono::nanoseconds timeout);
    /// Releases the acquired experts, which may then be dropped. Does nothing if there are no such.
    void release();
    /// Changes the budget at the next acquire(): slots are added, or dropped with their content. It
    /// then follows `spare`; without `spare` it is fixed. Throws kOutOfMemory as the constructor.
    void set_memory(std::uint64_t memory_bytes, SpareMemory spare = {});
    [[nodiscard]] ExpertStreamStats stats() const;
    /// Does the same as the destructor. Later calls throw kClosed. May be called again.
    void close() noexcept;

private:
    std::unique_ptr<weights::StreamingExperts> impl_;
};

/// The minimum budget: two experts, so that one is read while the other computes. Throws
/// kInvalidArgument and kUnsupported as ExpertStream. Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t least_expert_memory(const TensorTable& table,
                                                             std::span<const ExpertLayer> layers);

/// The shares of a budget for a WeightStream and an ExpertStream of one model.
struct WeightShares {
    std::uint64_t units_bytes = 0;
    std::uint64_t experts_bytes = 0;
};

/// Divides a budget. Experts always get `least_experts` (least_expert_memory()), and room for 8 of
/// them as far as the minimum of the units (`least_units`, least_weight_memory()) allows. Then
/// units get as much as they can use, up to `most_units` bytes, because all of them are used in
/// each pass. Experts get the rest. Thread-safe.
[[nodiscard]] PENSTOCK_API WeightShares share_weight_memory(std::uint64_t memory_bytes,
                                                            std::uint64_t least_units,
                                                            std::uint64_t most_units,
                                                            std::uint64_t least_experts) noexcept;

}  // namespace penstock
