// SPDX-License-Identifier: Apache-2.0
// Rows of tables that stay in their files: embeddings, also if they are cut into several tensors
// and shards.
//
//     const penstock::TensorTable table = penstock::inspect(engine, "model/");
//     const penstock::TensorRows rows(engine, table, {"embed.0", "embed.1"});
//     std::vector<std::byte> out(ids.size() * rows.row_bytes());
//     rows.gather(ids, out);
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/types.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// Concatenated tensors with the same dtype and row shape, as one table. An index of the first
/// dimension selects a row. Movable. Thread-safe, except for moving and close().
class PENSTOCK_API TensorRows {
public:
    /// Opens the files. `names`: tensors of the table, in the order of their rows. Throws Error:
    /// kInvalidArgument for a name that the table does not have, a tensor without dimensions, and
    /// one whose dtype or row differs from the first; kUnsupported for strides; errors of the
    /// system.
    TensorRows(std::shared_ptr<Engine> engine, const TensorTable& table,
               std::span<const std::string> names, const FileSystem& files = FileSystem::local());

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
