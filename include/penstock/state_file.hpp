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
#include <penstock/progress.hpp>
#include <penstock/tensor_table.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
    /// As SaveOptions::streams.
    std::vector<StreamHandle> streams = {};
};

/// Saves a state. The new file takes the place of an old one in one step; when the call throws, the
/// old file is as it was. A symbolic link is followed; mode, owner and ACL of the old file are
/// kept. The tensors must not change meanwhile. A `.pt` has the structure, and no metadata. The
/// other formats have the metadata ({"format": "pt"} where none is given, which transformers looks
/// for), and no structure. Throws Error: kInvalidArgument for what the format cannot hold (a slice
/// of a global tensor, too), kUnsupported for memory of a device, ENOSPC with the missing bytes
/// before the first one is written. Blocks; thread-safe.
PENSTOCK_API void save_file(const std::shared_ptr<Engine>& engine, const std::string& path,
                            const State& state, const SaveFileOptions& options = {},
                            const FileSystem& files = FileSystem::local());

/// The result of StateFile::verify().
struct VerifiedFile {
    std::vector<CheckpointProblem> problems;
    std::string note;  ///< empty, or what could not be verified, and why
};

/// A `.pt`, a `.safetensors` or an index of shards, open for reading; recognised by its content.
/// Movable. Thread-safe but for moving and close(). Calls of one that was moved from throw
/// kInvalidArgument, calls after close() kClosed.
class PENSTOCK_API StateFile {
public:
    /// Reads the headers. `path`: a file, or a folder with an index. `cache`: of read(), see
    /// TransferOptions::cache. Throws as inspect().
    StateFile(std::shared_ptr<Engine> engine, const std::string& path,
              const FileSystem& files = FileSystem::local(),
              CachePolicy cache = CachePolicy::kAuto);
    StateFile(StateFile&& other) noexcept;
    StateFile& operator=(StateFile&& other) noexcept;
    StateFile(const StateFile&) = delete;
    StateFile& operator=(const StateFile&) = delete;
    ~StateFile();

    /// As inspect() has it.
    [[nodiscard]] const TensorTable& table() const;
    /// The structure around the tensors of a `.pt`, as in State; "null" for the other formats.
    [[nodiscard]] const std::string& structure() const;
    /// The names of the selected tensors: each element of `wanted` is the name of a tensor, or of
    /// what is above tensors ("model" for "model.weight"), or a pattern, with the rules of Python's
    /// fnmatch.fnmatchcase(). Each name once, in the order of `wanted`. Throws kInvalidArgument for
    /// what no tensor has.
    [[nodiscard]] std::vector<std::string> select(std::span<const std::string> wanted) const;
    /// Reads tensors, or pieces of them, by their names in table(); the same name may be wanted
    /// several times. `verify`: what covers whole checksums of the file is compared with them. A
    /// tensor with strides (in a `.pt`) takes memory for itself and what is behind it meanwhile.
    /// Throws kInvalidArgument for a name or a range that is not there, kDamaged for a checksum
    /// mismatch and for a file that was written to after it was opened. Bytes of what was wanted.
    std::uint64_t read(std::span<const TensorRead> wanted, bool verify = true,
                       const Progress& progress = {});
    /// Reads everything from the device, whatever is in the page cache, and compares it with the
    /// checksums that are in the file.
    [[nodiscard]] VerifiedFile verify(const Progress& progress = {});
    /// Closes the files; what is known without reading stays. Again is fine.
    void close() noexcept;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

struct LoadFileOptions {
    /// Names and patterns, as in StateFile::select(); empty: everything, with the structure.
    std::vector<std::string> names = {};
    /// Checksums of the file are compared. False: damage is not noticed.
    bool verify = true;
    CachePolicy cache = CachePolicy::kAuto;  ///< see TransferOptions::cache
    Progress progress = {};                  ///< bytes of what is loaded
};

/// A state, and the memory of its tensors. Movable; a copy shares the memory.
struct LoadedState {
    State state;    ///< its tensors are in `memory`
    Buffer memory;  ///< one block, to be written to freely
    /// The bytes of tensor i of the state.
    [[nodiscard]] Memory tensor(std::size_t i) const { return to_write(state.tensors.at(i).data); }
};

/// Loads a state: a `.pt`, a `.safetensors`, an index, or a checkpoint of a store (the path of its
/// folder; CheckpointInfo::path). Without `names` its tensors are as the file has them, and with
/// the structure save_file() and CheckpointStore::save() take it as it is. In the structure tensors
/// that share memory are views of one. With `names` the tensors have their names in the state, each
/// row-major, and there is no structure. Throws Error: kInvalidArgument for a name or pattern that
/// no tensor has and for a folder that is neither, kDamaged naming the tensor, kUnsupported for
/// forms that are not read, kOutOfMemory, kCancelled by `progress`. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API LoadedState load_file(const std::shared_ptr<Engine>& engine,
                                                 const std::string& path,
                                                 const LoadFileOptions& options = {},
                                                 const FileSystem& files = FileSystem::local());

}  // namespace penstock
