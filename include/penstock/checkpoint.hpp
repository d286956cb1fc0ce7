// SPDX-License-Identifier: Apache-2.0
// Checkpoints: training states in a folder; numbered, durable, never incomplete.
//
//     auto engine = std::make_shared<penstock::Engine>();
//     penstock::CheckpointStore store(engine, penstock::FileSystem::any(), {"checkpoints"});
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
#include <penstock/ranks.hpp>
#include <penstock/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace penstock {

// Tensors that change, or go, while a save writes them from the caller's own memory.

/// The answer of a save to a tensor that changes while it is written.
enum class Changing : std::uint8_t {
    /// The save fails with kChanged, and names the tensor. Nothing is committed, nothing removed.
    /// Memory is summed right before and right after each piece of some MiB is written. So a change
    /// is seen, unless it is made and undone between those two. A state of up to 256 MiB on the
    /// host is written from copies of some MiB at a time: its file is sound in any case. A save in
    /// the background compares eight words of each tensor on the host with those at its call, too:
    /// a tensor that was changed as a whole before it is first read is seen.
    kFails,
    /// The save takes what it finds, as torch.save() does: a tensor may be half old, half new. The
    /// file is sound: its checksums are those of the bytes that were written, because each piece is
    /// copied first, and written from the copy. That takes some 150 MB at most, and some 32 MiB
    /// for a state of up to 256 MiB.
    kTorn,
};

/// Called before bytes of tensors are read, with their numbers in State::tensors, from any thread
/// and from several at once. Returns the first of them whose memory is not what it was at the call
/// of save() (freed, or resized), or nothing: that save fails with kChanged. It may not throw.
/// Memory that goes between the look and the read is not noticed.
using MemoryLook = std::function<std::optional<std::size_t>(std::span<const std::size_t> tensors)>;

class CheckpointStore;
class FileSaver;

namespace store {
class BackgroundSaver;
class ReadBack;
// For the library itself.
std::shared_ptr<BackgroundSaver> saver_of(const CheckpointStore& store);
std::shared_ptr<BackgroundSaver> saver_of(const FileSaver& saver);
}  // namespace store

/// A tensor to save, row-major without gaps, in memory of the host or of a GPU. With `global_shape`
/// it is a slice of a larger tensor; other writers have the rest.
struct StateTensor {
    std::string name;   ///< UTF-8; unique in a state (slices of a global tensor share it)
    std::string dtype;  ///< of name_of(ElementType): "F32", "I64"; in a `.pt` also "C32", "C128"
    std::vector<std::uint64_t> shape;
    ConstMemory data;
    std::vector<std::uint64_t> global_shape = {};   ///< empty: the tensor is whole
    std::vector<std::uint64_t> global_offset = {};  ///< begin of the slice, in elements
    /// The memory is a copy, which nobody changes before the save is done: changes are not looked
    /// for.
    bool is_copy = false;
    /// The number of a slice among its copies on several ranks. Only number 0 is written.
    std::uint32_t copy = 0;
};

/// A state: tensors, and the structure around them, as a JSON text (docs/formats.md, "The
/// structure"). The caller's own texts belong in the metadata.
struct State {
    std::vector<StateTensor> tensors;
    std::string structure = "null";                                  ///< "null": only tensors
    std::vector<std::pair<std::string, std::string>> metadata = {};  ///< for people and tools
    /// XXH3 of `structure`, if it was already checked by decoding; otherwise save() checks it.
    std::uint64_t structure_sum = 0;
};

/// A plain value in the metadata of a checkpoint: nothing, a bool, a number or UTF-8 text.
using MetadataValue = std::variant<std::monostate, bool, std::int64_t, double, std::string>;
/// Names, each once, and their values. At most 1 MiB of names and texts.
using CheckpointMetadata = std::vector<std::pair<std::string, MetadataValue>>;

/// The number in the metadata by which checkpoints are compared: a loss, an accuracy.
struct Metric {
    std::string name;
    bool greater_is_better = false;
};

struct StoreOptions {
    /// The number of newest checkpoints to keep; 0: all, or with `keep_best` 1. Pinned ones are
    /// also kept.
    std::uint32_t keep = 0;
    /// Every so many saves one is also kept, whatever its step: that whose generation this number
    /// divides. 0: none.
    std::uint32_t keep_every = 0;
    /// Checkpoints whose step this number divides are also kept: of each such step, the newest. 0:
    /// none.
    std::uint64_t keep_every_steps = 0;
    /// The number of checkpoints with the best `metric` that are also kept; 0: none. See best().
    std::uint32_t keep_best = 0;
    Metric metric = {};
    std::uint64_t shard_bytes = std::uint64_t{256} << 20;  ///< approximate size of the tensors in a
                                                           ///< shard
    /// The one folder of the store is the path of one checkpoint, which each save replaces: it is
    /// the older one or the new one at any moment, never a mix, and what else lies in it stays. A
    /// Checkpoint opens it by that path; the store's other calls find nothing, and options about
    /// more than one checkpoint have no meaning. A path that holds what may not be replaced (the
    /// folder of a store, a manifest that cannot be read) is refused. The lock lasts for a save.
    bool at_path = false;
    bool checksums = true;  ///< for every chunk; without them nothing can be verified
    /// Shards whose tensors did not change since the last checkpoint are linked, not written.
    /// Needs checksums.
    bool incremental = true;
    /// Limit on the bytes of save_async()'s copies; 0: half of usable_memory_bytes().
    std::uint64_t host_memory_bytes = 0;
    /// Nothing is removed before a checkpoint was read back whole, with its checksums: by a load of
    /// everything, by verify(), or by save(), which reads before its first removal and then after
    /// at most one save in ten. The newest such checkpoint is kept, so up to `keep` + 1 are there.
    /// False, for a disk without room for that: a checkpoint counts as whole if its manifest and
    /// the sizes of its files are right. Needs checksums.
    bool read_back = true;
    /// How long save() waits for another process that writes to the same folder.
    std::uint32_t lock_wait_ms = 10'000;
    CachePolicy cache = CachePolicy::kAuto;  ///< for reads, as in Checkpoint
    /// The ranks that save. Each of them calls each save, with the same step, structure and whole
    /// tensors; tensors with a global_shape are each rank's own. Every rank writes a share. Rank 0
    /// holds the lock, decides, commits and removes; save() returns on no rank before the commit,
    /// and throws the same error on all if one of them fails. All ranks open their stores in the
    /// same order.
    Ranks ranks = {};
    /// A rank that does not move for so long has failed: the save ends, and its error names the
    /// rank. A slow rank is waited for.
    std::uint32_t rank_wait_ms = 300'000;
};

/// The description of a checkpoint, read without its tensors.
struct CheckpointInfo {
    std::uint64_t generation = 0;  ///< rises with every save; the newest has the highest
    std::uint64_t step = 0;        ///< the caller's own number; may repeat
    std::string path;              ///< its folder
    std::int64_t saved_unix_ns = 0;
    std::uint64_t tensors = 0;
    std::uint64_t tensor_bytes = 0;
    std::uint64_t written_bytes = 0;  ///< bytes of tensors that this save wrote; others were linked
    std::uint32_t shards = 0;
    std::uint32_t linked_shards = 0;
    std::uint32_t ranks = 1;  ///< that saved it together
    bool pinned = false;
    /// Values of SaveOptions::metadata, then texts of State::metadata.
    CheckpointMetadata metadata;
    /// From save(): empty, or unusual events: no direct I/O, with the reason; shards that could not
    /// be linked; an old checkpoint that could not be removed; foreign entries with a name of the
    /// store (reported once). From list(): empty, or why the store neither counts nor removes it
    /// ("it is a symbolic link").
    std::string note;
    /// Empty, or why it cannot be used ("shard-00002.safetensors is missing").
    std::string problem;
};

/// The answer of a save by several ranks to whole tensors and values that are not equal on them.
enum class Replicas : std::uint8_t {
    /// The save fails on all ranks, and names tensor or place, and two ranks. Tensors of the host
    /// are compared by their bytes; of those above 64 KiB, by three pieces of 4 KiB.
    kEqual,
    /// That of the first rank that has it is saved, and the others are not compared: the statistics
    /// of a BatchNorm under data parallelism. Tensors still have the same type and shape.
    kFirst,
};

struct SaveOptions {
    std::uint64_t step = 0;
    bool pinned = false;
    CheckpointMetadata metadata = {};  ///< returned in CheckpointInfo
    Progress progress = {};
    /// Tensors of a GPU are read after the work that these streams hold at the call. Empty: the
    /// legacy default stream of each GPU with tensors.
    std::vector<StreamHandle> streams = {};
    /// Tensors that change while they are written from the caller's memory.
    Changing changing = Changing::kFails;
    /// Empty: nobody looks whether the memory is still there.
    MemoryLook look = {};
    /// Called with a text about every ten seconds: for which rank this one waits.
    std::function<void(const std::string&)> waiting = {};
    Replicas replicas = Replicas::kEqual;  ///< the same on all ranks
};

/// The reason why a save_async() has not returned yet.
struct AsyncWait {
    /// What PendingSave::note() will say: the state has no room, and the call waits for its own
    /// save. Empty while it waits for the memory that earlier saves hold.
    std::string note;
    std::uint64_t done_bytes = 0;   ///< of its own save
    std::uint64_t total_bytes = 0;  ///< 0 before that begins
};

/// Options for the tensors in save_async().
struct AsyncOptions {
    /// False: no copy is made, and the tensors must not change before PendingSave::staged().
    bool copy = true;
    /// Memory that will not change before the save is done: it is written without a copy.
    std::vector<ConstMemory> unchanging = {};
    /// The owner of memory that is not copied. If the save needs such memory, the owner is kept
    /// until it is done, and released by a later call, never on the thread that saves. If all was
    /// copied, it is not kept.
    std::shared_ptr<void> keeps = nullptr;
    /// Called about twenty times a second, on the caller's thread, while the call waits. What it
    /// throws ends the wait: before the save has begun, or while that goes on.
    std::function<void(const AsyncWait&)> waiting = nullptr;
};

/// A save in the background: queued, staged (the tensors may change), then durable or failed.
/// Copies refer to the same save. It continues if it is dropped; the next save(), save_async(),
/// wait() or close() of the store or FileSaver then throws its failure. Thread-safe. In the child
/// of a fork, a save of the parent counts as failed (kCancelled).
class PENSTOCK_API PendingSave {
public:
    enum class State : std::uint32_t { kQueued, kStaged, kDurable, kFailed };

    struct Impl;
    explicit PendingSave(std::shared_ptr<Impl> impl);  ///< made by save_async()

    /// Of the save, for messages: "step 100", "'model.pt'".
    [[nodiscard]] const std::string& name() const;
    [[nodiscard]] State state() const;
    /// Whether the tensors may change; true at once if all were copied.
    [[nodiscard]] bool staged() const;
    /// Whether it is durable or has failed.
    [[nodiscard]] bool done() const;
    /// Waits until staged() or done() is true; false when the time is over.
    bool wait_staged(std::chrono::nanoseconds timeout = kNoTimeout) const;
    bool wait(std::chrono::nanoseconds timeout = kNoTimeout) const;
    /// Waits. Throws the error of the save. Of a file's save the result has its path, and the
    /// number and bytes of its tensors.
    CheckpointInfo result() const;
    /// The error that it failed with, or nullptr. Never blocks. Counts as reported then: the next
    /// save does not throw it.
    [[nodiscard]] std::exception_ptr failure() const;
    /// Stops the save; result() then throws kCancelled, unless the save was already over.
    void cancel();
    /// Whether it has failed because of cancel(), or because it is a save of the parent process.
    [[nodiscard]] bool cancelled() const;
    /// Adds 1 to an eventfd when it is done, or at once. The caller may close the descriptor
    /// before. Throws kInvalidArgument for another descriptor, std::bad_alloc.
    void notify(int eventfd) const;
    [[nodiscard]] std::uint64_t done_bytes() const;
    [[nodiscard]] std::uint64_t total_bytes() const;  ///< 0 before it begins
    /// Empty, or why save_async() had to wait for memory.
    [[nodiscard]] const std::string& note() const;
    /// Seconds that save_async() waited for the memory that earlier saves held.
    [[nodiscard]] double waited_s() const;

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
    std::uint64_t changed_generation = 0;  ///< the generation in which its content last changed
};

/// A piece of a tensor to read: [begin[d], end[d]) of each dimension, or all of it if empty. `into`
/// has exactly that many bytes, row-major. Nothing else is written, not even gaps between elements
/// because of `strides_bytes`. Memory of a GPU cannot have strides. A piece that is contiguous in
/// the file is read directly to the GPU, and copied back part by part to check it. Any other piece
/// goes through host memory of its size.
struct TensorRead {
    std::string name;
    Memory into;  ///< from the first element to the end of the last one
    std::vector<std::uint64_t> begin = {};
    std::vector<std::uint64_t> end = {};
    /// Distance in `into` from one element to the next in each dimension: a column of a matrix, a
    /// transposed tensor. Elements must not overlap. Empty: row-major without gaps.
    std::vector<std::uint64_t> strides_bytes = {};
};

/// One checkpoint, opened for reading. It stays readable if the store deletes it meanwhile; the
/// space on the disk is then freed when the Checkpoint is closed or destroyed. Movable, thread-safe
/// except for moving. Calls of a moved-from object throw kInvalidArgument.
class PENSTOCK_API Checkpoint {
public:
    /// Opens a folder by its path, without a store. `cache`: for read(), see
    /// TransferOptions::cache. Throws kDamaged if its manifest is damaged.
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
    /// The metadata as text, with numbers as in JSON. info() has the values.
    [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& metadata() const;
    /// Reads pieces of tensors and checks their chunks. For a piece along the first dimension, that
    /// reads the piece and at most one chunk (256 KiB) at each end. Throws kInvalidArgument for an
    /// unknown name or an invalid range, kDamaged for a checksum mismatch. Returns the bytes read
    /// from storage.
    std::uint64_t read(std::span<const TensorRead> wanted, bool verify = true,
                       const Progress& progress = {});
    /// Reads everything from the device, whatever is in the page cache, and checks it. Returns the
    /// problems; empty if there are no such.
    [[nodiscard]] std::vector<CheckpointProblem> verify(const Progress& progress = {},
                                                        Priority priority = Priority::kNormal);
    /// Closes the files. Afterwards read() and verify() throw kClosed, also running calls of other
    /// threads that need another file. The description stays available. May be called again.
    void close() noexcept;

private:
    friend class CheckpointStore;
    void report_to(std::shared_ptr<store::ReadBack> read_back);
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// A checkpoint that load() tries.
struct Loading {
    Checkpoint checkpoint;
    /// This rank can load it, and has changed nothing yet. Returns when all ranks can, and throws
    /// where one cannot. To be called once, before the first change; load() calls it otherwise when
    /// `use` returns.
    std::function<void()> ready;
    /// For Checkpoint::read(), of what comes after ready(): shows the other ranks that this one
    /// moves, and stops when another one has failed.
    Progress progress;
};

struct LoadOptions {
    std::optional<std::uint64_t> step = {};        ///< only checkpoints of that step
    std::optional<std::uint64_t> generation = {};  ///< that one alone, damaged or not
    /// Called while this rank waits for others, 50 ms to 1 s apart. What it throws ends the load on
    /// all.
    std::function<void()> look = {};
    /// Called with a text about every ten seconds: for which rank this one waits.
    std::function<void(const std::string&)> waiting = {};
};

/// Numbered checkpoints in a folder, or with their shards spread over several. Any number of
/// readers; one process writes at a time (a lock, taken by the first save and held until the store
/// is destroyed). Thread-safe; saves of one store run one after another. Calls of a moved-from
/// store throw kInvalidArgument.
class PENSTOCK_API CheckpointStore {
public:
    /// `folders`: the folders of the checkpoints. The first has the manifests, and each gets shards
    /// according to the speed of its device. The first save makes missing folders and their
    /// parents. A second store that writes to the same folders is refused, even in one process.
    CheckpointStore(std::shared_ptr<Engine> engine, FileSystem files,
                    std::vector<std::string> folders, const StoreOptions& options = {});
    CheckpointStore(CheckpointStore&& other) noexcept;
    CheckpointStore& operator=(CheckpointStore&& other) noexcept;
    CheckpointStore(const CheckpointStore&) = delete;
    CheckpointStore& operator=(const CheckpointStore&) = delete;
    ~CheckpointStore();

    /// Saves a state. It is durable when the call returns; older checkpoints have then been removed
    /// as `keep` says. When it throws, nothing has changed: a failure after the checkpoint is
    /// durable is reported in CheckpointInfo::note, if there is memory for that. Throws
    /// kInvalidArgument for a structure that cannot be read with these tensors, and when it is
    /// called by the progress function of a save of this store, kChanged for a tensor that changed
    /// during the call (SaveOptions::changing). The one error of a checkpoint that exists is
    /// kDamaged: it was read back (StoreOptions::read_back), and is not what was saved; then no
    /// older one was removed for it. Earlier saves of save_async() finish first. Tensors of a GPU
    /// are written through the engine's slots, and copied to the host once more, some MiB at a
    /// time, for their checksums.
    CheckpointInfo save(const State& state, const SaveOptions& options = {});
    /// A save() that returns when the tensors have been copied; they may then change or be freed.
    /// Of several ranks, the failure of an earlier one that was not reported is thrown once this
    /// one has begun, and save() leaves it for the next call: another rank may not have heard of it
    /// yet. The GPU copies its tensors into memory that is pinned and kept for the next save. Saves
    /// run in order on one thread; `progress` is called there. Copies in flight hold at most
    /// host_memory_bytes in total: at that limit the call waits for one to finish. A state larger
    /// than the limit is not copied: the call waits until it is saved (PendingSave::note()). Throws
    /// the failure of an earlier save that was not reported yet; this one has then not begun. The
    /// destructor of the store finishes the saves in flight; failures that were not reported by
    /// then are lost: call wait() or close() before.
    PendingSave save_async(State state, const SaveOptions& options = {},
                           const AsyncOptions& async = {});
    /// For who finds out before save() or load() that it cannot be done, where other ranks call it:
    /// counts as this rank's call, and ends that save or load on all ranks with this reason.
    /// Without other ranks it does nothing.
    void refuse_save(const Error& why);
    /// Waits until no save of save_async() is in flight; false when the time is over. Then throws
    /// the first failure that was not reported yet.
    bool wait(std::chrono::nanoseconds timeout = PendingSave::kNoTimeout);
    /// Finishes the saves in flight and releases the lock; then throws as wait(). Afterwards calls
    /// that write throw kClosed, and the others work as before. May be called again. In the child
    /// of a process that writes it does nothing.
    void close();
    /// The newest complete checkpoint: its manifest is valid, and every shard exists with its size.
    /// `skipped`: newer ones that are not complete, and why. Throws if a newer one may be valid but
    /// cannot be read (Error::is_about_the_file() is false). Also throws if all are skipped and the
    /// system could not read one (EIO), after filling `skipped`: the caller must not take that for
    /// an empty store and start over.
    [[nodiscard]] std::optional<CheckpointInfo> latest(
        std::vector<CheckpointInfo>* skipped = nullptr) const;
    /// Opens the latest() and passes it to `use`; if `step` is given, only checkpoints of that
    /// step. Of several ranks each does this alone. If `use` throws an error about the file (a
    /// damaged chunk), that checkpoint is skipped, and the previous one is opened.
    std::optional<CheckpointInfo> open_newest(const std::function<void(Checkpoint)>& use,
                                              std::optional<std::uint64_t> step = {},
                                              std::vector<CheckpointInfo>* skipped = nullptr) const;
    /// Loads the newest checkpoint, or the one that is asked for, on all ranks: each of them calls
    /// it. Rank 0 names the checkpoint, each rank opens it in its own view of the folder, and `use`
    /// reads what that rank needs. It is called with no checkpoint before all ranks have called
    /// load(). An error about the file that one rank finds (its own, or of `use`) makes all take
    /// the previous one, unless a generation is asked for; any other error on one rank is one on
    /// all, with its name. So all that return have loaded the same one. Saves in flight finish
    /// first. With one rank it is as open_newest(), or open().
    ///
    /// Rank 0 tells the others that all have loaded it. If it ends right then, a rank that has not
    /// heard that throws.
    std::optional<CheckpointInfo> load(const std::function<void(Loading)>& use,
                                       const LoadOptions& options = {},
                                       std::vector<CheckpointInfo>* skipped = nullptr);
    /// All checkpoints, oldest first, including those with a problem.
    [[nodiscard]] std::vector<CheckpointInfo> list() const;
    /// At most `count` checkpoints with the best metric, the best first; of equal ones the newest
    /// first. Only checkpoints without a problem count, whose metadata has a number of that name
    /// other than NaN. `skipped`: those that the system refused to give, and that may be better.
    /// Throws if none counts and the system refused one, and kInvalidArgument if no metadata has
    /// the name but one has a similar name.
    [[nodiscard]] std::vector<CheckpointInfo> best(
        const Metric& metric, std::size_t count = 1,
        std::vector<CheckpointInfo>* skipped = nullptr) const;
    /// open(), pin() and remove() throw kInvalidArgument, with both names, where two checkpoints
    /// have the generation: one was copied by hand. A Checkpoint opens one by its path.
    [[nodiscard]] Checkpoint open(std::uint64_t generation) const;
    /// Keeps a checkpoint whatever `keep` says, durably.
    void pin(std::uint64_t generation, bool pinned = true);
    /// Removes a checkpoint. Throws kInvalidArgument for the newest complete one.
    void remove(std::uint64_t generation);
    /// Removes unfinished checkpoints of killed processes; save() does this too. Returns the bytes
    /// freed.
    std::uint64_t collect();
    [[nodiscard]] const std::vector<std::string>& folders() const;

private:
    friend std::shared_ptr<store::BackgroundSaver> store::saver_of(const CheckpointStore& store);
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
