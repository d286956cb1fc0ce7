// SPDX-License-Identifier: Apache-2.0
// Saved tensors, independent of their form: named tensors, the place of their bytes, the structure
// around them, and a way to read and verify them. Files are opened once and kept open.
#pragma once

#include "state/tensor_file.hpp"
#include "stream/file_reader.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/state_file.hpp>
#include <penstock/tensor_table.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::state {

using Verified = VerifiedFile;

class Source {
public:
    Source() = default;
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;
    virtual ~Source() = default;

    /// The tensors as stored: memory that two tensors of a state share is one here.
    [[nodiscard]] const TensorTable& table() const { return table_; }
    [[nodiscard]] const std::string& path() const { return table_.path; }
    /// "checkpoint of a store", "safetensors file", ...
    [[nodiscard]] std::string_view kind() const;
    [[nodiscard]] const std::vector<TensorEntry>& tensors() const { return table_.tensors; }
    /// In the form of state/structure.hpp; "null": only the tensors.
    [[nodiscard]] const std::string& structure() const { return structure_; }
    [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& metadata() const {
        return table_.metadata;
    }
    [[nodiscard]] std::uint64_t bytes() const;
    /// The path of the file with a tensor's first byte.
    [[nodiscard]] const std::string& path_of(const TensorEntry& tensor) const;

    /// Reads rows [begin, end) of the first dimension; all of a tensor without dimensions.
    virtual void read(std::size_t tensor, std::uint64_t begin, std::uint64_t end,
                      std::span<std::byte> into) = 0;
    /// Reads all tensors; into[i] gets the bytes of tensor i.
    virtual void read_all(std::span<const std::span<std::byte>> into, const Progress& progress) = 0;
    /// Whether read() and read_all() check what they read.
    [[nodiscard]] virtual bool checks_reads() const { return false; }
    [[nodiscard]] virtual Verified verify(const Progress& progress) = 0;

protected:
    TensorTable table_;
    std::string structure_ = "null";
};

/// A source whose tensors are in files, each contiguous.
class FileSource : public Source {
public:
    explicit FileSource(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
    void read(std::size_t tensor, std::uint64_t begin, std::uint64_t end,
              std::span<std::byte> into) override;
    void read_all(std::span<const std::span<std::byte>> into, const Progress& progress) override;
    /// Stretches of one file, each of the tensor with the same number in `tensors`. `verify`: what
    /// covers whole checksums is compared with them. Throws kDamaged for a mismatch.
    void read_stretches(std::uint32_t file, std::span<stream::Wanted> wanted,
                        std::span<const std::size_t> tensors, bool verify,
                        const Progress& progress);

protected:
    /// Adds the known checksums of a stretch of a tensor.
    virtual void add_sums(std::size_t tensor, stream::Wanted& wanted) = 0;

    std::shared_ptr<Engine> engine_;
    std::vector<File> files_;  // those of the table
};

/// Opens a `.pt`, a `.safetensors` or an index, by content; for a folder, its index. Throws Error:
/// kDamaged, kUnsupported, kInvalidArgument for a folder without an index.
[[nodiscard]] std::unique_ptr<FileSource> open_source(const std::shared_ptr<Engine>& engine,
                                                      const FileSystem& files,
                                                      const std::string& path);

// The forms: torch_source.cpp, safetensors_source.cpp, index_source.cpp.
[[nodiscard]] std::unique_ptr<FileSource> torch_source(const std::shared_ptr<Engine>& engine,
                                                       TensorFile file);
[[nodiscard]] std::unique_ptr<FileSource> safetensors_source(const std::shared_ptr<Engine>& engine,
                                                             TensorFile file);
[[nodiscard]] std::unique_ptr<FileSource> index_source(const std::shared_ptr<Engine>& engine,
                                                       const FileSystem& files, TensorFile index);

}  // namespace penstock::state
