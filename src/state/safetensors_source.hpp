// SPDX-License-Identifier: Apache-2.0
// The tensors of one or several .safetensors files as one source: a file by itself, and the shards
// of an index.
#pragma once

#include "format/safetensors.hpp"
#include "state/source.hpp"
#include "state/sum_table.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace penstock::state {

class SafetensorsSource final : public FileSource {
public:
    /// `file`: its content is a Header. Starts without tensors.
    explicit SafetensorsSource(const std::shared_ptr<Engine>& engine) : FileSource(engine) {}

    void set_kind(TableKind kind, std::string path);
    /// Returns the number of the file. Its content is a Header; only added tensors are visible.
    std::uint32_t add_file(TensorFile file);
    [[nodiscard]] const format::safetensors::Header& header(std::uint32_t file) const {
        return headers_[file];
    }
    /// Adds tensor `index` of a file's header.
    void add_tensor(std::uint32_t file, std::size_t index);

    [[nodiscard]] Verified verify(const Progress& progress) override;

private:
    void add_sums(std::size_t tensor, stream::Wanted& wanted) override;

    std::once_flag tables_made_;
    std::vector<std::optional<SumTable>> tables_;       // one per file, made by the first check
    std::vector<format::safetensors::Header> headers_;  // one per file
    std::vector<std::size_t> indexes_;                  // of each tensor, in its file's header
};

}  // namespace penstock::state
