// SPDX-License-Identifier: Apache-2.0
// An open file for the readers of formats, which read bytes by offset. An Error of the engine is
// thrown, through the reader.
#pragma once

#include "format/byte_source.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace penstock::stream {

class FileBytes final : public format::ByteSource {
public:
    /// The file from byte `begin` on. `engine` outlives it.
    FileBytes(Engine& engine, File file, std::uint64_t begin = 0)
        : engine_(engine), file_(std::move(file)), begin_(begin) {
        const std::uint64_t bytes = file_.size();
        size_ = bytes - std::min(bytes, begin);
    }
    [[nodiscard]] std::uint64_t size() const override { return size_; }
    [[nodiscard]] format::Result<void> read(std::uint64_t offset,
                                            std::span<std::byte> into) override;
    /// Reads all of them concurrently.
    [[nodiscard]] format::Result<void> read_many(std::span<const format::ByteRead> reads) override;

private:
    Engine& engine_;
    File file_;
    std::uint64_t begin_;
    std::uint64_t size_ = 0;
};

}  // namespace penstock::stream
