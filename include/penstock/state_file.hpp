// SPDX-License-Identifier: Apache-2.0
// A training state in one file, or in an index of shards: saved and read.
//
//     const auto engine = std::make_shared<penstock::Engine>();
//     penstock::save_file(engine, "model.safetensors", state);
//     penstock::StateFile file(engine, "model.safetensors");
//     const penstock::TensorRead weight{.name = "layer.0.weight", .into = bytes};
//     file.read({&weight, 1});
//     penstock::LoadedState all = penstock::load_file(engine, "model.safetensors");
//
// torch.load() and safetensors read what save_file() writes, and StateFile what they write. For
// numbered checkpoints of a training run there is CheckpointStore.
#pragma once

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/memory.hpp>
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
#include <utility>
#include <vector>

namespace penstock {

enum class StateFormat : std::uint8_t {
    /// ".safetensors" is that format, ".safetensors.index.json" an index with its shards in the
    /// same folder, any other suffix a `.pt` (except another ".json": kInvalidArgument).
    kBySuffix,
    kTorch,        ///< a `.pt`, the zip of torch.save
    kSafetensors,  ///< one file
    kIndex,        ///< an index of shards; the path ends in ".safetensors.index.json"
};

struct SaveFileOptions {
    StateFormat format = StateFormat::kBySuffix;
    /// Limit on the bytes of tensors in a shard of an index. A larger tensor has its own shard.
    std::uint64_t shard_bytes = 5'000'000'000;
    /// XXH3 of each 256 KiB or more of a tensor, in the metadata of `.safetensors`. A `.pt` always
    /// has the CRC-32 of its zip.
    bool checksums = true;
    /// The file survives a power failure when the call returns. False: the call does not wait for
    /// the device. Other processes still see the old file or the new one, whole; after a power
    /// failure within moments of the call, the file may be damaged or missing.
    bool sync = true;
    Progress progress = {};  ///< bytes of the file, or of all shards
    /// As in SaveOptions.
    std::vector<StreamHandle> streams = {};
    Changing changing = Changing::kFails;
    MemoryLook look = {};
    /// Gets what a user should know of a save that went well, if it is given. Shards of an earlier
    /// index of that name stay where it is not known that save_file() wrote them.
    std::string* note = nullptr;
};

/// Saves a state. The new file replaces an old one in one step; if the call throws, the old file is
/// unchanged. A symbolic link is followed; mode, owner and ACL of the old file are kept. The
/// tensors must not change during the call. A `.pt` has the structure, and no metadata. The other
/// formats have the metadata (by default {"format": "pt"}, which transformers looks for), and no
/// structure. Throws Error: kInvalidArgument for a state that the format cannot hold (also a slice
/// of a global tensor), kUnsupported for memory of a GPU without a driver, ENOSPC with the missing
/// bytes before the first one is written. Blocks; thread-safe.
PENSTOCK_API void save_file(const std::shared_ptr<Engine>& engine, const std::string& path,
                            const State& state, const SaveFileOptions& options = {},
                            const FileSystem& files = FileSystem::any());

/// Saves files in the background, one after another, while the caller's tensors change.
///
///     penstock::FileSaver saver(engine);
///     penstock::PendingSave pending = saver.save_async("model.safetensors", state);
///     ...                                        // the next step of the training
///     pending.result();                          // durable, or throws
///
/// Thread-safe. The destructor finishes the saves in flight; failures that were not reported by
/// then are lost: call wait() before.
class PENSTOCK_API FileSaver {
public:
    /// `host_memory_bytes`: limit on the bytes of the copies; 0: half of usable_memory_bytes().
    /// Throws kInvalidArgument without an engine.
    explicit FileSaver(std::shared_ptr<Engine> engine, std::uint64_t host_memory_bytes = 0,
                       FileSystem files = FileSystem::any());
    FileSaver(FileSaver&& other) noexcept;
    FileSaver& operator=(FileSaver&& other) noexcept;
    FileSaver(const FileSaver&) = delete;
    FileSaver& operator=(const FileSaver&) = delete;
    ~FileSaver();

    /// A save_file() that returns when the tensors have been copied; see
    /// CheckpointStore::save_async() for memory, waits and the failures of earlier saves. Of the
    /// options, `progress` is called on the thread that saves, and `note` is not used:
    /// PendingSave::result() has it. Throws what save_file() says of the state and the path.
    PendingSave save_async(const std::string& path, State state,
                           const SaveFileOptions& options = {}, const AsyncOptions& async = {});
    /// Waits until no save is in flight; false when the time is over. Then throws the first failure
    /// that was not reported yet.
    bool wait(std::chrono::nanoseconds timeout = PendingSave::kNoTimeout);

private:
    friend std::shared_ptr<store::BackgroundSaver> store::saver_of(const FileSaver& saver);
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Tensors that come one after another, so that they need not fit into memory together.
struct TensorStream {
    /// Gives the next tensor, or nothing at the end. It is written, or copied, before the next one
    /// is asked for: its memory must stay for that long, and may be used again then. A tensor is
    /// saved row-major, in memory of its own. What the function throws ends the save.
    std::function<std::optional<StateTensor>()> next;
    /// The tensors that will come, without their memory, in any order. For one `.safetensors`,
    /// whose header is at its beginning, they must be known: by this. For the other formats it may
    /// be empty. Otherwise a tensor that is not in it, or is there with another dtype or shape, and
    /// one that does not come, is an error (kInvalidArgument).
    std::optional<std::vector<StateTensor>> like = {};
    /// As in State. A structure other than "null" needs `like`.
    std::string structure = "null";
    std::vector<std::pair<std::string, std::string>> metadata = {};
};

/// Saves tensors as they come, with the promises of the save_file() above. The memory that it takes
/// does not depend on their number: about 50 MB. A `.pt` has its pickle at its end, and shards of
/// an index end where the next tensor would exceed `shard_bytes`, or the room for names. The free
/// space is checked before the first byte where `like` is given for one `.safetensors`, or with a
/// structure. Of the options, `look` is not used; `changing` looks for changes of host memory while
/// it is copied. An index keeps three descriptors open for each shard. Throws Error as that, also
/// kInvalidArgument for a name that comes twice.
PENSTOCK_API void save_file(const std::shared_ptr<Engine>& engine, const std::string& path,
                            const TensorStream& tensors, const SaveFileOptions& options = {},
                            const FileSystem& files = FileSystem::any());

/// The tensors of a checkpoint and its structure, without its metadata: what save_file() saves
/// without loading it whole. One tensor is in memory at a time. For once; the checkpoint must
/// outlive it. Formats other than a `.pt` take it if its state is a dict of tensors.
[[nodiscard]] PENSTOCK_API TensorStream stream_of(Checkpoint& checkpoint);

/// The result of StateFile::verify().
struct VerifiedFile {
    std::vector<CheckpointProblem> problems;
    std::string note;  ///< empty, or what could not be verified, and why
};

/// A `.pt`, a `.safetensors` or an index of shards, open for reading; recognised by its content.
/// Movable. Thread-safe except for moving and close(). Calls of a moved-from object throw
/// kInvalidArgument, calls after close() kClosed.
class PENSTOCK_API StateFile {
public:
    /// Reads the headers. `path`: a file, or a folder with an index or one `.safetensors`. `cache`:
    /// for read(), see TransferOptions::cache. Throws as inspect().
    StateFile(std::shared_ptr<Engine> engine, const std::string& path,
              const FileSystem& files = FileSystem::any(), CachePolicy cache = CachePolicy::kAuto);
    StateFile(StateFile&& other) noexcept;
    StateFile& operator=(StateFile&& other) noexcept;
    StateFile(const StateFile&) = delete;
    StateFile& operator=(const StateFile&) = delete;
    ~StateFile();

    /// The same table as from inspect().
    [[nodiscard]] const TensorTable& table() const;
    /// The structure around the tensors of a `.pt`, as in State; "null" for the other formats.
    [[nodiscard]] const std::string& structure() const;
    /// The names of the selected tensors. Each element of `wanted` is the name of a tensor, or a
    /// prefix of names ("model" for "model.weight"), or a pattern with the rules of Python's
    /// fnmatch.fnmatchcase(). Each name once, in the order of `wanted`. Throws kInvalidArgument if
    /// an element matches no tensor.
    [[nodiscard]] std::vector<std::string> select(std::span<const std::string> wanted) const;
    /// Reads tensors, or pieces of them, by their names in table(); names may be repeated.
    /// `verify`: pieces that cover whole checksums of the file are checked. For a tensor with
    /// strides (in a `.pt`) the bytes between its elements need memory during the call. Throws
    /// kInvalidArgument for an unknown name or an invalid range, kDamaged for a checksum mismatch
    /// and for a file that was written to after it was opened. Returns the bytes of the pieces.
    std::uint64_t read(std::span<const TensorRead> wanted, bool verify = true,
                       const Progress& progress = {});
    /// Reads everything from the device, whatever is in the page cache, and compares it with the
    /// checksums that are in the file.
    [[nodiscard]] VerifiedFile verify(const Progress& progress = {});
    /// Closes the files; table() and structure() stay available. May be called again.
    void close() noexcept;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

struct LoadFileOptions {
    /// Names and patterns, as in StateFile::select(); empty: everything, with the structure.
    std::vector<std::string> names = {};
    /// Checks the checksums of the file. False: damage is not noticed.
    bool verify = true;
    CachePolicy cache = CachePolicy::kAuto;  ///< see TransferOptions::cache
    Progress progress = {};                  ///< loaded bytes
};

/// A state, and the memory of its tensors. Movable; a copy shares the memory.
struct LoadedState {
    State state;    ///< its tensors are in `memory`
    Buffer memory;  ///< one block, which the caller may change
    /// The bytes of tensor i of the state.
    [[nodiscard]] Memory tensor(std::size_t i) const { return to_write(state.tensors.at(i).data); }
};

/// Loads a state: a `.pt`, a `.safetensors`, an index, or a checkpoint of a store (the path of its
/// folder; CheckpointInfo::path). Without `names` it has the tensors of the file and the structure,
/// and save_file() and CheckpointStore::save() accept it unchanged. In the structure, tensors that
/// share memory are views of one tensor. With `names` the tensors have their names in the state,
/// each row-major, and there is no structure. Throws Error: kInvalidArgument for a name or pattern
/// without a match and for a folder without model or checkpoint, kDamaged with the tensor,
/// kUnsupported for forms that are not read, kOutOfMemory, kCancelled by `progress`. Blocks;
/// thread-safe.
[[nodiscard]] PENSTOCK_API LoadedState load_file(const std::shared_ptr<Engine>& engine,
                                                 const std::string& path,
                                                 const LoadFileOptions& options = {},
                                                 const FileSystem& files = FileSystem::any());

// New bytes for tensors of a saved file, in place: the rest of the file is not written.
//
//     const auto engine = std::make_shared<penstock::Engine>();
//     const penstock::StateTensor bias{.name = "layer.0.bias", .dtype = "F32", .shape = {4096},
//                                      .data = bytes};
//     penstock::update_file(engine, "model.safetensors", {&bias, 1});
//
// The new bytes, and the checksums that cover them, are first made durable in a log next to the
// file (`model.safetensors.penstock-update`), then written into the file, which is synced, and then
// the log is removed. After a crash at any point all that reads the file through this library gives
// all of the old tensors or all of the new ones: from the file, or from the file and the log. The
// next update_file() of the file finishes what was interrupted. Readers that do not know the log,
// such as torch.load() and safetensors, may meet a part of the update between a crash and that
// call.

struct UpdateFileOptions {
    Progress progress = {};  ///< bytes of the tensors, while they go to the log
    /// As in SaveOptions.
    std::vector<StreamHandle> streams = {};
};

/// Writes tensors into a `.pt`, a `.safetensors` or an index of shards of any writer, recognised by
/// its content. A tensor has the name that inspect() gives, and the type and shape that it has in
/// the file; its data is row-major, of the host or of a GPU, and does not change during the call.
/// Checksums in the file are kept right: those of Penstock, and the CRC-32 of a zip. A call for an
/// index is one update of all its shards. Without tensors the call finishes an interrupted update,
/// and does nothing else.
///
/// A symbolic link is followed. One process at a time updates a file; another waits for some
/// seconds. If the call throws, the old tensors are there; if what failed was to write them into
/// the file, after the log was complete, the new ones are, and the message says so.
///
/// Throws Error, before a byte is written: kInvalidArgument for an unknown name, another type or
/// shape, a tensor that shares its memory with others of the state, a file with several hard links
/// or of a CheckpointStore, and for a log next to the file that does not fit it, which is left;
/// kUnsupported for a tensor that is a part of its storage; kDamaged for a damaged file or log;
/// kChanged for a file that another program writes to, replaces or links meanwhile, which stays (if
/// it is replaced while it is written, too); EACCES for a file that is read-only; ENAMETOOLONG if
/// the name of its log is too long; EWOULDBLOCK while another process updates it; ENOSPC.
/// Blocks; thread-safe.
PENSTOCK_API void update_file(const std::shared_ptr<Engine>& engine, const std::string& path,
                              std::span<const StateTensor> tensors,
                              const UpdateFileOptions& options = {},
                              const FileSystem& files = FileSystem::any());

}  // namespace penstock
