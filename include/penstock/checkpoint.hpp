// SPDX-License-Identifier: Apache-2.0
// Checkpoints: a training state in a folder, numbered, durable, never incomplete.
//
//     auto engine = std::make_shared<penstock::Engine>();
//     penstock::CheckpointStore store(engine, penstock::FileSystem::local(), {"checkpoints"});
//     store.save(state, {.step = 100});
//     if (auto latest = store.latest()) {
//         penstock::Checkpoint checkpoint = store.open(latest->generation);
//         const penstock::TensorRead weight{.name = "layer.0.weight", .into = bytes};
//         checkpoint.read({&weight, 1});
//     }
//
// A checkpoint is a folder of safetensors shards with a manifest (docs/checkpoint.md has the
// promises, docs/formats.md the bytes). All calls throw Error; kDamaged is an error found by a
// checksum or a parser, with the file and the tensor in its message.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/gpu.hpp>
#include <penstock/progress.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace penstock {

/// A tensor to be saved, row-major without gaps, in memory of the host or of a GPU. With
/// `global_shape` it is a slice of a larger one; other writers have the rest.
struct StateTensor {
    std::string name;   ///< UTF-8; once in a state (once for each slice of a global tensor)
    std::string dtype;  ///< of name_of(ElementType): "F32", "I64"; in a `.pt` also "C32", "C128"
    std::vector<std::uint64_t> shape;
    ConstMemory data;
    std::vector<std::uint64_t> global_shape = {};   ///< empty: the tensor is whole
    std::vector<std::uint64_t> global_offset = {};  ///< elements, where the slice begins
};

/// A state: tensors, and the structure around them, as a JSON text (docs/formats.md, "The
/// structure"). Texts of the caller belong into the metadata.
struct State {
    std::vector<StateTensor> tensors;
    std::string structure = "null";                                  ///< tensors only
    std::vector<std::pair<std::string, std::string>> metadata = {};  ///< for people and tools
    /// XXH3 of `structure`, if its maker has read it again already; save() reads any other.
    std::uint64_t structure_sum = 0;
};

/// A plain value in the metadata of a checkpoint: nothing, a bool, a number or UTF-8 text.
using MetadataValue = std::variant<std::monostate, bool, std::int64_t, double, std::string>;
/// Names, each once, and their values. At most 1 MiB of names and texts.
using CheckpointMetadata = std::vector<std::pair<std::string, MetadataValue>>;

/// A number in the metadata by which checkpoints are compared: a loss, an accuracy.
struct Metric {
    std::string name;
    bool greater_is_better = false;
};

struct StoreOptions {
    /// Newest checkpoints that are kept; 0: all, or with `keep_best` 1. Pinned ones, and every
    /// `keep_every`-th generation (0: none), are kept beyond that.
    std::uint32_t keep = 0;
    std::uint32_t keep_every = 0;
    /// Checkpoints with the best `metric` that are kept beyond that; 0: none. See best().
    std::uint32_t keep_best = 0;
    Metric metric = {};
    std::uint64_t shard_bytes = std::uint64_t{256} << 20;  ///< approximate size of the tensors in a
                                                           ///< shard
    bool checksums = true;  ///< of every chunk; without them nothing can be verified
    /// Shards whose tensors did not change since the last checkpoint are linked, not written.
    /// Needs checksums.
    bool incremental = true;
    /// Limit on the bytes of save_async()'s copies; 0: half of usable_memory_bytes().
    std::uint64_t host_memory_bytes = 0;
    /// How long save() waits for another process that writes to the same folder.
    std::uint32_t lock_wait_ms = 10'000;
    CachePolicy cache = CachePolicy::kAuto;  ///< of reads, as in Checkpoint
};

/// The description of a checkpoint, read without its tensors.
struct CheckpointInfo {
    std::uint64_t generation = 0;  ///< rises with every save; what "newest" means
    std::uint64_t step = 0;        ///< the caller's own number; may repeat
    std::string path;              ///< its folder
    std::int64_t saved_unix_ns = 0;
    std::uint64_t tensors = 0;
    std::uint64_t tensor_bytes = 0;
    std::uint64_t written_bytes = 0;  ///< of tensors, by this save; the rest was linked
    std::uint32_t shards = 0;
    std::uint32_t linked_shards = 0;
    bool pinned = false;
    /// Values of SaveOptions::metadata, then texts of State::metadata.
    CheckpointMetadata metadata;
    /// From save(): empty, or anything out of the ordinary (no direct I/O here and why; shards that
    /// could not be linked; an old checkpoint that could not be removed; entries with a name of the
    /// store's that are not its own, once). From list(): empty, or why the store neither counts nor
    /// removes it ("it is a symbolic link").
    std::string note;
    /// Empty, or why it cannot be used ("shard-00002.safetensors is missing").
    std::string problem;
};

struct SaveOptions {
    std::uint64_t step = 0;
    bool pinned = false;
    CheckpointMetadata metadata = {};  ///< comes back in CheckpointInfo
    Progress progress = {};
    /// Tensors of a GPU are read after what these streams hold at the call. Empty: the legacy
    /// default stream of each GPU whose memory it is.
    std::vector<StreamHandle> streams = {};
};

/// Options for the tensors in save_async().
struct AsyncOptions {
    /// False: no copy is made, and the tensors must not change before PendingSave::staged().
    bool copy = true;
    /// Memory that will not change before the save is done: it is written without a copy.
    std::vector<ConstMemory> unchanging = {};
    /// An object to keep until the save is done: the owner of memory that is not copied. Released
    /// by a call of the store that finds the save done, never on the thread that saves.
    std::shared_ptr<void> keeps = nullptr;
};

/// A save in the background: queued, staged (the tensors may change), then durable or failed.
/// Copies refer to the same save. It continues when it is dropped; the next save() or save_async()
/// throws a failure that was not reported yet. Thread-safe. In the child of a fork, a save of the
/// parent counts as failed (kCancelled).
class PENSTOCK_API PendingSave {
public:
    struct Impl;
    explicit PendingSave(std::shared_ptr<Impl> impl);  ///< made by save_async()

    /// Whether the tensors may change: true at once if all were copied.
    [[nodiscard]] bool staged() const;
    /// Whether it is durable or has failed.
    [[nodiscard]] bool done() const;
    /// Waits until staged() or done() is true; false when the time is over.
    bool wait_staged(std::chrono::nanoseconds timeout = kNoTimeout) const;
    bool wait(std::chrono::nanoseconds timeout = kNoTimeout) const;
    /// Waits. Throws the error of the save.
    CheckpointInfo result() const;
    /// Stops it; result() then throws kCancelled, unless it was over.
    void cancel();
    [[nodiscard]] std::uint64_t done_bytes() const;
    [[nodiscard]] std::uint64_t total_bytes() const;  ///< 0 before it begins
    /// Empty, or why save_async() had to wait for memory.
    [[nodiscard]] const std::string& note() const;

    static constexpr std::chrono::nanoseconds kNoTimeout = std::chrono::hours(24 * 365);

private:
    std::shared_ptr<Impl> impl_;
};

/// One problem that verify() found.
struct CheckpointProblem {
    std::string path;    ///< the file
    std::string tensor;  ///< or empty
    std::uint64_t offset = kNoOffset;
    std::string message;
};

/// A tensor of a checkpoint.
struct CheckpointTensor {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;  ///< of the whole tensor
    std::uint64_t bytes = 0;
    std::uint64_t changed_generation = 0;  ///< the generation in which its content changed last
};

/// A wanted piece of a tensor: [begin[d], end[d]) of each dimension, all of it when empty; into
/// memory of exactly that many bytes, row-major. Nothing else is written, not even the gaps between
/// elements that `strides_bytes` leaves. Memory of a GPU is without strides. What is one stretch in
/// the file goes straight there, and is copied back piece by piece to check it; any other box goes
/// through host memory of its size.
struct TensorRead {
    std::string name;
    Memory into;  ///< from the first element to the end of the last
    std::vector<std::uint64_t> begin = {};
    std::vector<std::uint64_t> end = {};
    /// Distance in `into` from one element to the next in each dimension: a column of a matrix, a
    /// transposed tensor. Elements must not overlap. Empty: row-major without gaps.
    std::vector<std::uint64_t> strides_bytes = {};
};

/// One checkpoint, opened for reading. It stays readable when the store deletes it meanwhile, and
/// the space on the disk is freed when the Checkpoint is closed or destroyed. Movable, thread-safe
/// except for moving; calls of one that was moved from throw kInvalidArgument.
class PENSTOCK_API Checkpoint {
public:
    /// Opens a folder by its path, without a store. `cache`: of read(), see TransferOptions::cache.
    /// kDamaged if its manifest is damaged.
    Checkpoint(std::shared_ptr<Engine> engine, const FileSystem& files, const std::string& path,
               CachePolicy cache = CachePolicy::kAuto);
    Checkpoint(Checkpoint&& other) noexcept;
    Checkpoint& operator=(Checkpoint&& other) noexcept;
    Checkpoint(const Checkpoint&) = delete;
    Checkpoint& operator=(const Checkpoint&) = delete;
    ~Checkpoint();

    [[nodiscard]] const CheckpointInfo& info() const;
    [[nodiscard]] const std::vector<CheckpointTensor>& tensors() const;
    [[nodiscard]] const std::string& structure() const;
    /// As text: numbers as JSON writes them. info() has the values.
    [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& metadata() const;
    /// Reads pieces of tensors and checks their chunks: along the first dimension that is the piece
    /// and at most one chunk (256 KiB) at each end. kInvalidArgument for a name or a range that
    /// does not exist, kDamaged for a checksum mismatch. Returns the bytes read from storage.
    std::uint64_t read(std::span<const TensorRead> wanted, bool verify = true,
                       const Progress& progress = {});
    /// Reads everything from the device, whatever is in the page cache, and checks it. Empty: no
    /// problem was found.
    [[nodiscard]] std::vector<CheckpointProblem> verify(const Progress& progress = {});
    /// Closes the files. Afterwards read() and verify() throw kClosed, also those that run on other
    /// threads and need another file; the description stays available. May be called again.
    void close() noexcept;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Numbered checkpoints in a folder, or with their shards spread over several. Any number of
/// readers; one process writes at a time (a lock, taken by the first save and held until the store
/// is destroyed). Thread-safe; saves of one store run one after another. Calls of one that was
/// moved from throw kInvalidArgument.
class PENSTOCK_API CheckpointStore {
public:
    /// `folders`: the folders of the checkpoints; the first has the manifests, each gets shards by
    /// the speed of its device. The first save makes missing ones, and their parents. A second
    /// store that writes to the same folders, even in the same process, is refused.
    CheckpointStore(std::shared_ptr<Engine> engine, FileSystem files,
                    std::vector<std::string> folders, const StoreOptions& options = {});
    CheckpointStore(CheckpointStore&& other) noexcept;
    CheckpointStore& operator=(CheckpointStore&& other) noexcept;
    CheckpointStore(const CheckpointStore&) = delete;
    CheckpointStore& operator=(const CheckpointStore&) = delete;
    ~CheckpointStore();

    /// Durable when it returns; then older checkpoints are removed, as `keep` says. When it throws,
    /// nothing has changed: a failure after the checkpoint is durable is reported in
    /// CheckpointInfo::note, if there is memory for that. The tensors must not change meanwhile.
    /// kInvalidArgument for a structure that cannot be read with these tensors. Earlier saves of
    /// save_async() finish first. Tensors of a GPU are written through the engine's slots, and
    /// copied to the host once more, some MiB at a time, for their checksums.
    CheckpointInfo save(const State& state, const SaveOptions& options = {});
    /// A save() that returns when a copy of the tensors is made: then they may change or be freed.
    /// Those of a GPU are copied by the GPU into memory that is pinned and kept for the next save.
    /// Saves run in order on one thread; `progress` is called there. Copies in flight hold at most
    /// host_memory_bytes together: at that limit the call waits for one to finish. A state larger
    /// than the limit is not copied: the call waits until it is saved (PendingSave::note()). Throws
    /// the failure of an earlier save that was not reported yet; then this one has not begun. The
    /// destructor of the store finishes the saves in flight; failures that were not reported before
    /// are lost then.
    PendingSave save_async(const State& state, const SaveOptions& options = {},
                           const AsyncOptions& async = {});
    /// The newest whole checkpoint: manifest sound, every shard there with its size. `skipped`:
    /// newer ones that are not, and why. Throws if a newer one may be sound and cannot be read
    /// (Error::is_about_the_file() is false). Also throws if all are skipped and the system could
    /// not read one (EIO), after `skipped` is filled: "no checkpoint" would be a reason to start
    /// over.
    [[nodiscard]] std::optional<CheckpointInfo> latest(
        std::vector<CheckpointInfo>* skipped = nullptr) const;
    /// Opens the latest() and passes it to `use`; only checkpoints of `step`, if given. If `use`
    /// throws an error about the file (a damaged chunk), that one is skipped, and the one before is
    /// opened.
    std::optional<CheckpointInfo> open_newest(const std::function<void(Checkpoint)>& use,
                                              std::optional<std::uint64_t> step = {},
                                              std::vector<CheckpointInfo>* skipped = nullptr) const;
    /// All, oldest first, those with a problem included.
    [[nodiscard]] std::vector<CheckpointInfo> list() const;
    /// At most `count` of the checkpoints with the best metric, the best first; of equal ones the
    /// newest first. One without a problem, whose metadata has a number of that name, counts; NaN
    /// does not. Throws as latest(), and kInvalidArgument where no metadata has the name and one
    /// has nearly that name.
    [[nodiscard]] std::vector<CheckpointInfo> best(const Metric& metric,
                                                   std::size_t count = 1) const;
    [[nodiscard]] Checkpoint open(std::uint64_t generation) const;
    /// Keeps it whatever `keep` says, durably.
    void pin(std::uint64_t generation, bool pinned = true);
    /// Throws kInvalidArgument for the newest whole one.
    void remove(std::uint64_t generation);
    /// Removes unfinished checkpoints of killed processes; save() does it by itself. Returns the
    /// bytes freed.
    std::uint64_t collect();
    [[nodiscard]] const std::vector<std::string>& folders() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
