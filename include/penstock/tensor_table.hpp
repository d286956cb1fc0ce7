// SPDX-License-Identifier: Apache-2.0
// The tensors in a file of tensors, and the place of their bytes.
//
//     const penstock::TensorTable table = penstock::inspect(engine, "model.safetensors");
//     for (const penstock::TensorEntry& tensor : table.tensors) { ... }
//
// A `.pt`, a `.safetensors` and an index of shards are recognised by their content, whatever their
// names; a folder by its index (a checkpoint of a store has one) or its only `.safetensors`.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

/// The source of a table.
enum class TableKind : std::uint8_t {
    kTorch,        ///< a `.pt`, the zip of torch.save
    kLegacyTorch,  ///< a `.pt` as torch before 1.6 wrote it
    kSafetensors,  ///< one file
    kIndex,        ///< an index, and the files that it names
    kCheckpoint,   ///< a checkpoint of a store
};

/// The kind of checksum that can verify the bytes of a tensor.
enum class ChecksumKind : std::uint8_t {
    kNone,
    kCrc32,  ///< of the storage that the tensor is in, in the directory of the zip
    kXxh3,   ///< of each piece of the tensor, written by Penstock
};

/// Contiguous bytes of a tensor.
struct TensorStretch {
    std::uint32_t file = 0;    ///< its number in TensorTable::files
    std::uint64_t offset = 0;  ///< bytes, from the start of the file
    std::uint64_t bytes = 0;
};

struct TensorEntry {
    std::string name;                  ///< in a `.pt` the keys in the state, joined by dots
    std::string dtype;                 ///< a name of name_of(ElementType): "F32", "BF16", "C128"
    std::vector<std::uint64_t> shape;  ///< of the whole tensor, in elements
    /// In elements; empty: row-major without gaps. With strides the stretch begins at the first
    /// element, and the others are in the same storage.
    std::vector<std::uint64_t> strides;
    std::uint64_t bytes = 0;  ///< of its elements
    /// One, or one for each slice that was saved separately.
    std::vector<TensorStretch> stretches;
    ChecksumKind checksum = ChecksumKind::kNone;
};

struct TensorTable {
    TableKind kind = TableKind::kSafetensors;
    std::string path;                ///< as given; of a folder, that of its index or file
    std::vector<std::string> files;  ///< paths of the files with the bytes
    std::vector<std::pair<std::string, std::string>> metadata;  ///< of `.safetensors`
    std::vector<TensorEntry> tensors;
};

/// Reads headers and no tensor. Files are closed when it returns. Throws Error: kDamaged for a
/// violation of the format, kUnsupported for forms that are not read, each with the path and
/// advice; errors of the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API TensorTable inspect(const std::shared_ptr<Engine>& engine,
                                               const std::string& path,
                                               const FileSystem& files = FileSystem::local());

}  // namespace penstock
