// SPDX-License-Identifier: Apache-2.0
// Reading files of tensors for the commands: a stretch piece by piece, the next one under way while
// one is looked at; many stretches in one transfer.
#pragma once

#include "format/byte_source.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace penstock::cli {

/// A file for the readers of formats.
class FileSource final : public format::ByteSource {
public:
    FileSource(Engine& engine, File file)
        : engine_(engine), file_(std::move(file)), size_(file_.size()) {}
    [[nodiscard]] std::uint64_t size() const override { return size_; }
    [[nodiscard]] format::Result<void> read(std::uint64_t offset,
                                            std::span<std::byte> into) override;
    [[nodiscard]] format::Result<void> read_many(std::span<const format::ByteRead> reads) override;

private:
    Engine& engine_;
    File file_;
    std::uint64_t size_;
};

class Stream {
public:
    explicit Stream(Engine& engine) : engine_(engine) {}
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream();
    /// Calls `look` with [offset, offset + bytes) of the file, in order, in pieces of `piece_bytes`
    /// (the last may have fewer).
    void run(const File& file, std::uint64_t offset, std::uint64_t bytes, std::uint64_t piece_bytes,
             const std::function<void(std::span<const std::byte>)>& look);

private:
    Engine& engine_;
    MemoryPool pool_;
    Buffer buffers_[2];
    Transfer next_;
};

/// Waits for all of it, telling how far it is every 100 ms.
void fetch(Engine& engine, TransferRequest request, const penstock::Progress& progress);

}  // namespace penstock::cli
