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
#include <numeric>
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

/// Finds `model.safetensors.index.json`, else the only index, else `model.safetensors`, else the
/// only `.safetensors` of the folders, and each shard in all folders that have it; the names of
/// diffusers (`diffusion_pytorch_model`) count as `model` does, and the folder of a pipeline means
/// that of its transformer, unet or prior. Reads headers and no tensor. A single name may also be
/// that of a file or an index. Throws Error: kInvalidArgument if nothing is found, if a
/// shard is in no folder, and, with both names, if copies differ in their size or header; otherwise
/// as inspect(). Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API WeightFolders
inspect_folders(const std::shared_ptr<Engine>& engine, const std::vector<std::string>& folders,
                const FileSystem& files = FileSystem::any());

/// The local cache of Hugging Face: HF_HUB_CACHE; else `hub` in HF_HOME; else `huggingface/hub` in
/// XDG_CACHE_HOME or ~/.cache. It need not exist. Thread-safe.
[[nodiscard]] PENSTOCK_API std::string hub_cache_folder();

/// The folder of a model in hub_cache_folder() by its name, "organization/name" or "name": the
/// snapshot that is `main`. Empty if it is not there; nothing is downloaded. Throws the errors of
/// the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API std::string find_hub_model(Engine& engine, const std::string& name,
                                                      const FileSystem& files = FileSystem::any());

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
//
// Units may be used on a GPU. What has no room there stays in pinned host memory as far as it fits,
// and is copied in each pass. The rest is read from the files:
//
//     penstock::WeightStream weights(engine, table, units,
//                                    {.memory_bytes = 40ull << 30,        // of the GPU
//                                     .gpu = 0,
//                                     .host_memory_bytes = 64ull << 30});
//     const auto& layer = weights.acquire(unit, {.handle = stream});      // `stream` waits for it
//     launch(layer.tensors, stream);
//     weights.release(unit, {.handle = stream});                          // once `stream` passes

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
        std::uint64_t bytes = 0;         ///< of its tensors
        std::uint64_t read_bytes = 0;    ///< read from files in each pass; the others stay
        std::uint64_t copied_bytes = 0;  ///< copied from pinned host memory to a GPU in each pass
    };
    std::vector<Unit> units;
    std::uint64_t memory_bytes = 0;    ///< the budget
    std::uint64_t resident_bytes = 0;  ///< memory of the tensors that stay where they are used
    std::uint32_t slots = 0;           ///< of `slot_bytes` each; 0: everything stays
    std::uint64_t slot_bytes = 0;
    std::uint64_t host_bytes = 0;    ///< pinned host memory of the tensors that are copied
    std::uint64_t copied_bytes = 0;  ///< in each pass, of all units
    std::uint64_t read_bytes = 0;    ///< in each pass, of all units
    /// Memory that residents and slots take; at most `memory_bytes`.
    [[nodiscard]] std::uint64_t used_bytes() const noexcept {
        return resident_bytes + slots * slot_bytes;
    }
};

/// Bytes that could be taken in addition to what is used; negative: bytes to give back.
using SpareMemory = std::function<std::int64_t()>;

/// Returns a function for available_memory_bytes() minus `reserve_bytes`, which the program's code,
/// its other memory and the page cache need. While threads wait for memory for more than a tenth of
/// the time (memory_stall()), it returns at most -1. One thread at a time may call it.
[[nodiscard]] PENSTOCK_API SpareMemory spare_memory(std::uint64_t reserve_bytes);

/// Returns a function for free_gpu_memory() minus `reserve_bytes`, which the program's other
/// tensors need. It throws the Error of free_gpu_memory(). Any thread.
[[nodiscard]] PENSTOCK_API SpareMemory spare_gpu_memory(std::int32_t gpu,
                                                        std::uint64_t reserve_bytes);

struct WeightStreamOptions {
    /// For slots and tensors that stay together: of the host, or of `gpu`.
    std::uint64_t memory_bytes = 0;
    /// The CUDA number of the GPU that units are used on. Nothing: they are used on the host.
    std::optional<std::int32_t> gpu = {};
    /// With `gpu`: pinned host memory for tensors that are copied in each pass. The engine's own
    /// memory is not part of it.
    std::uint64_t host_memory_bytes = 0;
    std::uint32_t slots = 2;  ///< 2 or more; each above 2 reads one unit further ahead
    Progress progress = {};   ///< of reading the tensors that stay
    /// WeightFolders::copies. Files that several folders have are read from all of them
    /// concurrently, in the ratio of their speeds. The speeds are measured when the stream is made,
    /// and corrected by which folder finishes first. Empty: only the files of the table.
    std::vector<std::vector<std::string>> copies = {};
    /// If given, the budget `memory_bytes` follows it: spare_memory(), or spare_gpu_memory() with
    /// `gpu`. acquire() calls it while no unit is held, at most once in `spare_interval`. Missing
    /// bytes are given back at once, down to the minimum that works. Half of the spare bytes are
    /// taken at the beginning of a pass.
    SpareMemory spare = {};
    std::chrono::nanoseconds spare_interval = std::chrono::milliseconds(100);
};

/// Chooses the tensors that stay in memory, so that a pass reads as little as possible. Of equal
/// layers it keeps the same share of each: access is cyclic, so a cache that drops the least
/// recently used would never hit. With `gpu` it chooses first what stays on the GPU, then what
/// stays in host memory. Of `options` it uses the budgets, `gpu` and `slots`, and needs no GPU.
/// Throws Error: kInvalidArgument for an unknown tensor; kOutOfMemory for a budget that is too
/// small, with the minimum and the unit that requires it. Thread-safe.
[[nodiscard]] PENSTOCK_API WeightPlan plan_weights(const TensorTable& table,
                                                   std::span<const WeightUnit> units,
                                                   const WeightStreamOptions& options);

/// The minimum of `options.memory_bytes` in plan_weights(). Throws kInvalidArgument as there.
/// Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t least_weight_memory(
    const TensorTable& table, std::span<const WeightUnit> units,
    const WeightStreamOptions& options = {});

/// The value of `options.memory_bytes` with which all tensors stay. Throws as plan_weights().
/// Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t most_weight_memory(
    const TensorTable& table, std::span<const WeightUnit> units,
    const WeightStreamOptions& options = {});

/// Units, and memory that tensors in none of them take.
struct UnitsToFit {
    std::vector<WeightUnit> units;
    std::uint64_t outside_bytes = 0;
};

/// Units with the minimum of memory that they and the bytes outside of them need.
struct FittedUnits : UnitsToFit {
    std::uint64_t least_bytes = 0;
};

/// Replaces units, given by their number, by their parts, and returns all units; nothing if none of
/// them has parts. They are those of the last result, at first those to fit.
using DivideUnits = std::function<std::optional<UnitsToFit>(std::span<const std::size_t> numbers)>;

/// Divides the largest units that have parts, equal ones together, until all fit into
/// `options.memory_bytes`. If they never do, returns the division that needs the least. Throws
/// Error as plan_weights(), and what `divide` throws.
[[nodiscard]] PENSTOCK_API FittedUnits fit_weight_units(const TensorTable& table, UnitsToFit from,
                                                        const WeightStreamOptions& options,
                                                        const DivideUnits& divide);

/// The largest module outside of layers, without parts, that stays in memory: reading it in each
/// pass takes more time than its bytes are worth. `all_bytes`: of all weights. Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t small_weight_bytes(std::uint64_t all_bytes) noexcept;

/// The tensors of a unit in memory.
struct WeightView {
    /// In the order of WeightUnit::tensors, row-major, of the host or of a GPU. A tensor that is
    /// aligned to its elements in the file has the same address modulo 64 as there (on the host:
    /// modulo 4096, where it is aligned to 64); others begin at a multiple of 64.
    std::vector<ConstMemory> tensors;
    /// Keeps the addresses valid, not the content.
    std::vector<std::shared_ptr<void>> owners;
    /// The slot of the tensors that were read or copied, or WeightStream::kNoSlot.
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
    std::uint64_t bytes_read = 0;     ///< without the tensors that stay
    std::uint64_t bytes_copied = 0;   ///< from pinned host memory to a GPU
    std::vector<std::int64_t> stall;  ///< for each unit: nanoseconds of waiting for its files
    std::vector<WeightFolderStats> folders;
    std::int64_t running = 0;        ///< nanoseconds in passes: from the first acquire() to the
                                     ///< last release() of each
    std::uint64_t needed_bytes = 0;  ///< that the acquired units needed from files
    /// The rate of reading while the files never idled: while one unit after the other was waited
    /// for. 0: that has not happened. On a GPU, a slot that is still computed with delays the
    /// reading into it, and lowers this rate.
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
/// Streams are of the primary context of the GPU, which torch, CuPy and the CUDA runtime use; the
/// default one is the legacy default stream. Without a GPU they are not used. Movable.
class PENSTOCK_API WeightStream {
public:
    static constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};

    /// Opens the files, reads the tensors that stay, and begins to read ahead. Throws Error: those
    /// of plan_weights(); kUnsupported for a tensor with strides, or without a GPU where one is
    /// named; kInvalidArgument for a GPU that does not exist; kOutOfMemory if the GPU has no room
    /// or host memory cannot be pinned; errors of the system.
    WeightStream(std::shared_ptr<Engine> engine, const TensorTable& table,
                 std::vector<WeightUnit> units, const WeightStreamOptions& options,
                 const FileSystem& files = FileSystem::any());
    WeightStream(WeightStream&& other) noexcept;
    WeightStream& operator=(WeightStream&& other) noexcept;
    WeightStream(const WeightStream&) = delete;
    WeightStream& operator=(const WeightStream&) = delete;
    /// As close().
    ~WeightStream();

    [[nodiscard]] const WeightPlan& plan() const;
    /// Waits until the unit's bytes from files are in memory, where they stay until release(). On a
    /// GPU, `stream` is made to wait for its copies from host memory. A unit that was not read
    /// ahead is read at once, before others. Throws Error: kInvalidArgument if more units are held
    /// than there are slots; kDamaged for a file that was changed, checked once a pass; errors of
    /// reading, with the file and a tensor; errors of the GPU. The next acquire() tries again.
    const WeightView& acquire(std::size_t unit, const StreamHandle& stream = {});
    /// The same, or nullptr when the time is over; reading continues.
    const WeightView* acquire_for(std::size_t unit, std::chrono::nanoseconds timeout,
                                  const StreamHandle& stream = {});
    /// Releases a unit, once for each acquire(). Its slot is reused for the next units: on a GPU
    /// after the work that `stream` holds now, for which no thread waits. After an error of the GPU
    /// the unit is still held.
    void release(std::size_t unit, const StreamHandle& stream = {});
    /// Changes the budget `memory_bytes` at the first acquire() while no unit is held: tensors are
    /// dropped, or read. It then follows `spare`; without `spare` it is fixed. Throws as
    /// plan_weights(). Memory of a GPU goes back when no view's owner keeps it.
    void set_memory(std::uint64_t memory_bytes, SpareMemory spare = {});
    [[nodiscard]] WeightStreamStats stats() const;
    /// Cancels running reads and waits for them, and for running copies to a GPU, at most 10 s:
    /// streams that released units may delay them. Later calls throw kClosed. May be called again.
    void close() noexcept;

private:
    std::unique_ptr<weights::Streaming> impl_;
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
    std::uint64_t memory_bytes = 0;        ///< for the slots of experts: of the host, or of `gpu`
    std::optional<std::int32_t> gpu = {};  ///< as WeightStreamOptions::gpu
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
    std::vector<ConstMemory> parts;
    std::shared_ptr<void> owner;  ///< keeps the addresses valid, not the content
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
                 const FileSystem& files = FileSystem::any());
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
    /// Releases the acquired experts, which may then be dropped: on a GPU after the work that
    /// `stream` holds now. Does nothing if there are no such. Throws the errors of the GPU; the
    /// experts are then still held.
    void release(const StreamHandle& stream = {});
    /// Changes the budget at the next acquire(): slots are added, or dropped with their content. It
    /// then follows `spare`; without `spare` it is fixed. Throws kOutOfMemory as the constructor.
    void set_memory(std::uint64_t memory_bytes, SpareMemory spare = {});
    [[nodiscard]] ExpertStreamStats stats() const;
    /// Does the same as the destructor. Later calls throw kClosed. May be called again.
    void close() noexcept;

private:
    std::unique_ptr<weights::StreamingExperts> impl_;
};

/// The minimum of `options.memory_bytes`: two experts, so that one is read while the other
/// computes. Throws kInvalidArgument and kUnsupported as ExpertStream. Thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t least_expert_memory(
    const TensorTable& table, std::span<const ExpertLayer> layers,
    const ExpertStreamOptions& options = {});

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

// The memory, the reads and the seconds that a model with streamed weights needs, computed before
// anything is run.
//
//     const penstock::TensorTable table = penstock::inspect(engine, "model/");
//     const penstock::WeightForecast forecast = penstock::forecast_weights(table, 8ull << 30);
//     const double seconds = penstock::pass_seconds(forecast.plan, 3e9);

/// Finds the units of a model by the names of its tensors. A numbered group is a layer, and a unit:
/// "model.layers.0.mlp.up.weight" is in "model.layers.0". A tensor outside of layers is in the unit
/// of its module: "lm_head.weight" is in "lm_head". Layers are sorted by number; otherwise the
/// order is that of the table. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<WeightUnit> find_weight_units(const TensorTable& table);

/// Finds the layers of experts of a mixture by the names of its tensors. The tensors of one expert
/// are below "experts" and its number ("model.layers.0.mlp.experts.3.up_proj.weight"). Or tensors
/// of all experts are below "experts", with the expert as their first dimension. Layers are sorted
/// by number. A group of another form is omitted. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<ExpertLayer> find_expert_layers(const TensorTable& table);

/// The number of experts that a token uses in each layer, from config.json in one of the folders
/// (or next to the named file); 0 if no config.json has it. Throws Error: kDamaged for a file that
/// is not JSON; errors of the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API std::uint64_t find_experts_per_token(
    Engine& engine, std::span<const std::string> folders,
    const FileSystem& files = FileSystem::any());

/// The experts of a mixture, which are read when a router has chosen them. All 0 if there are none,
/// or if everything stays in memory.
struct ExpertForecast {
    std::uint64_t layers = 0;
    std::uint64_t experts = 0;       ///< in all layers
    std::uint64_t chosen = 0;        ///< experts that a token uses, in all layers
    std::uint64_t bytes = 0;         ///< of all experts
    std::uint64_t memory_bytes = 0;  ///< their share of the budget
    std::uint64_t slots = 0;         ///< experts that fit into it
    std::uint64_t slot_bytes = 0;
    /// The expected share of chosen experts that are in memory: `slots` / `experts`, as if the
    /// router chose each equally often. A router that prefers some has more hits, as these stay.
    double hits = 0;
    std::uint64_t read_bytes = 0;  ///< expected bytes that a token reads of the others
};

/// The effect of a memory budget.
struct WeightForecast {
    WeightPlan plan;  ///< for all tensors except those of `experts` and `stay_bytes`
    ExpertForecast experts;
    /// Bytes of experts that are read while a unit of the plan computes, for each unit.
    std::vector<std::uint64_t> expert_read_bytes;
    /// Bytes of the weights that compute a token, for each unit: without embeddings, of which it
    /// uses a row, and without experts that it does not use.
    std::vector<std::uint64_t> token_bytes;
    std::uint64_t weight_bytes = 0;  ///< of all tensors of the table
    /// Bytes of tensors that are in no unit, and stay: modules of small_weight_bytes(), and tensors
    /// of a module itself whose parts are units.
    std::uint64_t stay_bytes = 0;
    /// Embeddings that are read by row, and so are in no unit and in no budget: tensors with two
    /// dimensions, outside of layers, with the name of an embedding ("embed_tokens", "wte"). None
    /// if everything stays. If no other tensor has the shape of the largest embedding, the head is
    /// assumed to be tied to it, and it is then a unit too.
    std::vector<std::string> rows;
    std::uint64_t least_memory_bytes = 0;  ///< the smallest budget that works
    std::string least_tensor;              ///< the tensor whose size determines it
    /// Bytes that a token reads: of units, and the expected bytes of experts.
    [[nodiscard]] std::uint64_t read_bytes() const noexcept {
        return plan.read_bytes + experts.read_bytes;
    }
    /// The used part of the budget.
    [[nodiscard]] std::uint64_t used_bytes() const noexcept {
        return stay_bytes + plan.used_bytes() + experts.slots * experts.slot_bytes;
    }
    /// Bytes of the weights that compute a token.
    [[nodiscard]] std::uint64_t weights_of_token() const noexcept {
        return std::accumulate(token_bytes.begin(), token_bytes.end(), stay_bytes);
    }
};

/// The plan for the units of find_weight_units() without what stays (WeightForecast::stay_bytes).
/// Units that are too large for the budget are divided into their parts (fit_weight_units()), down
/// to modules without parts. `slots`: as for plan_weights(). If not everything stays, experts
/// (find_expert_layers()) have a separate share of the budget (share_weight_memory()), and a token
/// uses `experts_per_token` of them in each layer; 0: all. Throws Error: kOutOfMemory for a budget
/// that is too small, with the minimum and the tensor that determines it; kInvalidArgument for a
/// table without tensors; kUnsupported for a tensor with strides. Thread-safe.
[[nodiscard]] PENSTOCK_API WeightForecast forecast_weights(const TensorTable& table,
                                                           std::uint64_t memory_bytes,
                                                           std::uint32_t slots = 2,
                                                           std::uint64_t experts_per_token = 0);

/// Seconds of a pass (a token, when decoding) of a plan. The device reads `bytes_per_second`, one
/// unit after the other, each as soon as it has a slot. A unit is computed when it is there and the
/// previous one is done. `compute_seconds`: the time to compute a whole pass with all weights in
/// memory; each unit has a share of it in proportion to its bytes. With 0 the result is the bound
/// of the device. Throws kInvalidArgument for a rate that is not above 0, and for negative seconds.
/// Thread-safe.
[[nodiscard]] PENSTOCK_API double pass_seconds(const WeightPlan& plan, double bytes_per_second,
                                               double compute_seconds = 0);
/// The same with experts. They are read first when their layer has chosen them, and the layer waits
/// for them.
[[nodiscard]] PENSTOCK_API double pass_seconds(const WeightForecast& forecast,
                                               double bytes_per_second, double compute_seconds = 0);

/// Measures the bytes a second at which the files of a model are read, without the page cache, each
/// from all folders that have it, all folders concurrently, for about `time`. Throws Error:
/// kInvalidArgument for a folder whose files are empty; errors of the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API double measure_weight_rate(
    Engine& engine, const WeightFolders& model,
    std::chrono::nanoseconds time = std::chrono::seconds(1),
    const FileSystem& files = FileSystem::any());

/// Measures the bytes a second that `threads` threads (0: one less than the process may use, at
/// least one) read from memory that no cache holds, for about `time`. A token of a batch of 1 uses
/// each weight once, so the bytes of a pass divided by this rate are the minimum time of computing
/// it. Products of 16-bit numbers often take longer. Throws Error (kOutOfMemory; kSystem if a
/// thread cannot be started). Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API double measure_memory_rate(
    unsigned threads = 0, std::chrono::nanoseconds time = std::chrono::milliseconds(500));

}  // namespace penstock
