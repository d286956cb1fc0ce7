// SPDX-License-Identifier: Apache-2.0
// Tensors in files: their table, .npy files, and rows read by number.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/error.hpp>
#include <penstock/file.hpp>
#include <penstock/types.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

// The tensors in a file of tensors, and the place of their bytes.
//
//     const penstock::TensorTable table = penstock::inspect(engine, "model.safetensors");
//     for (const penstock::TensorEntry& tensor : table.tensors) { ... }
//
// A `.pt`, a `.npz`, a `.safetensors` and an index of shards are recognised by their content,
// whatever their names; a folder by its index (a checkpoint of a store has one) or its only
// `.safetensors`.

/// The source of a table.
enum class TableKind : std::uint8_t {
    kTorch,        ///< a `.pt`, the zip of torch.save
    kLegacyTorch,  ///< a `.pt` as torch before 1.6 wrote it
    kNpz,          ///< a `.npz`, the zip of numpy.savez, not compressed
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
                                               const FileSystem& files = FileSystem::any());

// Files of NumPy with one array each (.npy): many of one dtype and shape are read as one array.
//
//     const auto header = penstock::read_npy_header(paths.front());
//     std::vector<std::byte> rows(paths.size() * header.data_bytes);
//     penstock::read_npy(engine, paths, header, rows);

struct NpyHeader {
    std::string dtype;  ///< as NumPy spells it: "<f4", "|u1"; ">f4" if it is big-endian
    std::vector<std::uint64_t> shape;
    std::uint64_t header_bytes = 0;  ///< the elements begin at this byte of the file
    std::uint64_t data_bytes = 0;    ///< of the elements
};

struct NpyOptions {
    CachePolicy cache = CachePolicy::kAuto;
    Progress progress;  ///< of the elements' bytes
};

/// Reads the header of a .npy file. Throws kInvalidArgument for a file that is not .npy,
/// kUnsupported for Fortran order, structured elements, Python objects, or another
/// dtype than bool, int, uint, float, complex, S and U. Any thread; blocks.
[[nodiscard]] PENSTOCK_API NpyHeader read_npy_header(Engine& engine, const std::string& path);

/// Reads the elements of file i to `into`, from byte i * expected.data_bytes on; `into` has
/// `paths.size()` times as many bytes. Any number of files, with few descriptors. Returns the bytes
/// of all elements. Throws the errors of read_npy_header(), kInvalidArgument for the first file
/// whose dtype or shape is not as expected (and for memory of another size), kEndOfFile for a
/// truncated file, and kCancelled if `progress` returns false; the contents of `into` are then
/// undefined. Any thread; blocks.
PENSTOCK_API std::uint64_t read_npy(Engine& engine, std::span<const std::string> paths,
                                    const NpyHeader& expected, Memory into,
                                    const NpyOptions& options = {});

// Rows of tables that stay in their files: embeddings, also if they are cut into several tensors
// and shards.
//
//     const penstock::TensorTable table = penstock::inspect(engine, "model/");
//     const penstock::TensorRows rows(engine, table, {"embed.0", "embed.1"});
//     std::vector<std::byte> out(ids.size() * rows.row_bytes());
//     rows.gather(ids, out);

/// Concatenated tensors with the same dtype and row shape, as one table. An index of the first
/// dimension selects a row. Movable. Thread-safe, except for moving and close().
class PENSTOCK_API TensorRows {
public:
    /// Opens the files. `names`: tensors of the table, in the order of their rows. Throws Error:
    /// kInvalidArgument for a name that the table does not have, a tensor without dimensions, and
    /// one whose dtype or row differs from the first; kUnsupported for strides; errors of the
    /// system.
    TensorRows(std::shared_ptr<Engine> engine, const TensorTable& table,
               std::span<const std::string> names, const FileSystem& files = FileSystem::any());

    [[nodiscard]] std::uint64_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::uint64_t row_bytes() const noexcept { return row_bytes_; }
    /// As TensorEntry::dtype.
    [[nodiscard]] const std::string& dtype() const noexcept { return dtype_; }
    /// Dimensions of a row, in elements: those of the tensors without the first.
    [[nodiscard]] const std::vector<std::uint64_t>& row_shape() const noexcept {
        return row_shape_;
    }

    /// Reads row `ids[i]` to out[i * row_bytes()]. It is one transfer, in the order of the files:
    /// near rows are read together, and a repeated row once. Returns the bytes moved. Blocks.
    /// Throws Error: kInvalidArgument for a row that does not exist and for `out` of another size;
    /// errors of reading.
    std::uint64_t gather(std::span<const std::uint64_t> ids, std::span<std::byte> out,
                         const TransferOptions& options = {}) const;
    /// The same, without waiting. `ids` are used only during the call.
    [[nodiscard]] Transfer gather_async(std::span<const std::uint64_t> ids,
                                        std::span<std::byte> out,
                                        const TransferOptions& options = {}) const;
    /// The request that these submit.
    [[nodiscard]] TransferRequest request(std::span<const std::uint64_t> ids,
                                          std::span<std::byte> out,
                                          const TransferOptions& options = {}) const;
    /// Closes the files after running transfers. Later calls throw kClosed.
    void close();

private:
    std::shared_ptr<Engine> engine_;
    std::vector<File> files_;
    std::vector<RowTable> tables_;
    std::string dtype_;
    std::vector<std::uint64_t> row_shape_;
    std::uint64_t rows_ = 0;
    std::uint64_t row_bytes_ = 0;
};

}  // namespace penstock
