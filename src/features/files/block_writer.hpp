// SPDX-License-Identifier: Apache-2.0
// Writes one file from front to back, in two blocks of memory: while one is written, the other is
// filled. Makes the checksums of what passes.
#pragma once

#include "features/files/feature_layout.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/memory.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace penstock::features {

class BlockWriter {
public:
    static constexpr std::uint64_t kBytes = 4 * kChunkBytes;

    /// Begins at `offset` of a file that is open for writing.
    BlockWriter(std::shared_ptr<Engine> engine, File file, std::uint64_t offset);
    BlockWriter(BlockWriter&&) = default;
    BlockWriter& operator=(BlockWriter&&) = delete;
    BlockWriter(const BlockWriter&) = delete;
    BlockWriter& operator=(const BlockWriter&) = delete;
    /// Waits for what is under way; an error is lost.
    ~BlockWriter();

    /// The offset of the next byte.
    [[nodiscard]] std::uint64_t at() const { return at_ + filled_; }
    /// From here on one checksum for each chunk.
    void begin_sums() { sums_ = {}; }
    /// Copies the bytes. Blocks while both blocks are full.
    void put(std::span<const std::byte> bytes);
    void put_zeros(std::uint64_t bytes);
    /// Fills up with zeros, which no checksum counts, to a multiple of 4096 bytes, begins all of it
    /// and returns the checksums.
    [[nodiscard]] std::vector<std::uint64_t> end_sums();
    /// Waits until all of it is written. Throws the error of writing.
    void finish();

private:
    /// The place of the next byte.
    [[nodiscard]] std::byte* room();
    void flush(std::uint64_t padding);

    std::shared_ptr<Engine> engine_;
    File file_;
    MemoryPool pool_;
    std::array<Buffer, 2> blocks_;
    std::array<Transfer, 2> transfers_;
    std::size_t current_ = 0;
    std::uint64_t at_ = 0;      // of the current block in the file
    std::uint64_t filled_ = 0;  // of it
    std::vector<std::uint64_t> sums_;
};

}  // namespace penstock::features
