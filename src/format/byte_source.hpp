// SPDX-License-Identifier: Apache-2.0
// Reads bytes by offset: formats know the offsets, and the owner of the open file reads. All reads
// lie within size(), so no claim of a file costs memory that the file does not have.
#pragma once

#include "base/assert.hpp"
#include "format/fault.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace penstock::format {

/// One of several reads.
struct ByteRead {
    std::uint64_t offset;
    std::span<std::byte> into;
};

class ByteSource {
public:
    ByteSource() = default;
    ByteSource(const ByteSource&) = delete;
    ByteSource& operator=(const ByteSource&) = delete;
    virtual ~ByteSource() = default;
    [[nodiscard]] virtual std::uint64_t size() const = 0;
    /// Fills `into` from `offset` on; both lie within size().
    [[nodiscard]] virtual Result<void> read(std::uint64_t offset, std::span<std::byte> into) = 0;
    /// Fills all of them, in any order. A source that waits for each read has many in flight at
    /// once.
    [[nodiscard]] virtual Result<void> read_many(std::span<const ByteRead> reads) {
        for (const ByteRead& one : reads) {
            PENSTOCK_CHECK(read(one.offset, one.into));
        }
        return {};
    }
};

class MemorySource final : public ByteSource {
public:
    explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
    [[nodiscard]] std::uint64_t size() const override { return bytes_.size(); }
    [[nodiscard]] Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
        PENSTOCK_ASSERT(offset <= bytes_.size() && into.size() <= bytes_.size() - offset);
        if (!into.empty()) {
            std::memcpy(into.data(), bytes_.data() + offset, into.size());
        }
        return {};
    }

private:
    std::span<const std::byte> bytes_;
};

}  // namespace penstock::format
