// SPDX-License-Identifier: Apache-2.0
// Saved tensors, independent of their form: named tensors, the place of their bytes, the structure
// around them, and a way to read and verify them. Files are opened once and kept open.
#pragma once

#include "state/tensor_reader.hpp"

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

/// All of a tensor, by its number, and memory of its size.
struct TensorInto {
    std::size_t tensor = 0;
    std::span<std::byte> into;
};

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
    /// In the form of state/structure/structure.hpp; "null": only the tensors.
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
    virtual void read_tensors(std::span<const TensorInto> wanted,
                              const stream::ReadFileOptions& options, const Progress& progress) = 0;
    /// Whether read() checks what it reads.
    [[nodiscard]] virtual bool checks_reads() const { return false; }
    [[nodiscard]] virtual Verified verify(const Progress& progress) = 0;

protected:
    TensorTable table_;
    std::string structure_ = "null";
};

/// A `.pt`, a `.safetensors` or an index, recognised by content. The tensors of a `.pt` have the
/// names that a store would give them.
class FileSource final : public Source {
public:
    /// Throws Error: kDamaged, kUnsupported.
    FileSource(std::shared_ptr<Engine> engine, const FileSystem& files, const std::string& path);
    void read(std::size_t tensor, std::uint64_t begin, std::uint64_t end,
              std::span<std::byte> into) override;
    void read_tensors(std::span<const TensorInto> wanted, const stream::ReadFileOptions& options,
                      const Progress& progress) override;
    [[nodiscard]] Verified verify(const Progress& progress) override;
    /// Reads parts of tensors: TensorReader::read(), `item` being the number of a tensor. Progress
    /// counts what is wanted.
    void read_parts(std::vector<TensorReader::ItemRange> parts, std::span<const Memory> into,
                    const stream::ReadFileOptions& options, const Progress& progress);

private:
    class Verifying;

    void name_tensors(const format::torch_file::File& content);
    void add_tensor(std::size_t item);
    [[nodiscard]] const format::safetensors::Header& header_of(std::size_t file) const;

    std::shared_ptr<Engine> engine_;
    TensorReader reader_;
    std::vector<std::pair<std::size_t, std::uint64_t>> places_;  // item, and first byte in it
};

/// Opens a file, or that of a folder (model_file()). Throws Error: kDamaged, kUnsupported,
/// kInvalidArgument for a folder that has none.
[[nodiscard]] std::unique_ptr<FileSource> open_source(const std::shared_ptr<Engine>& engine,
                                                      const FileSystem& files,
                                                      const std::string& path);

}  // namespace penstock::state
