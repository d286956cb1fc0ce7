// SPDX-License-Identifier: Apache-2.0
// One file of a fake disk: its bytes as readers see them, its bytes on the medium, and between the
// two the writes of the volatile cache in their order. Sectors of 512 bytes are written to the
// medium one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace penstock::simulation {

/// Decides which of `count` things in a row survive: called for each, in order.
using Survival = std::function<bool(std::size_t index, std::size_t count)>;

class FakeInode {
public:
    static constexpr std::uint64_t kSectorBytes = 512;

    /// `hollow`: keeps only its size.
    explicit FakeInode(bool hollow) : hollow_(hollow) {}

    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] std::span<const std::byte> data() const { return data_; }
    /// Within the size.
    void read(std::uint64_t offset, std::span<std::byte> into) const;
    /// Within the size; volatile.
    void write(std::uint64_t offset, std::span<const std::byte> from);
    /// Volatile.
    void resize(std::uint64_t bytes);

    /// The caller that writes or resizes sets the time.
    [[nodiscard]] std::int64_t modified_ns() const { return modified_ns_; }
    void set_modified(std::int64_t since_1970_ns) { modified_ns_ = since_1970_ns; }

    void sync();
    /// Writes the part of the cache that `keep` selects to the medium, and drops the rest.
    /// `size_choice` selects the size on the medium: 0 the old, 1 the new, else one between them.
    void lose_cache(const Survival& keep, std::uint64_t size_choice);
    /// Readers see the medium from now on.
    void restart();
    /// Changes the bytes without a write, on the medium and as seen.
    void damage(const std::function<void(std::vector<std::byte>&)>& change);

private:
    static constexpr std::uint64_t kNotCut = UINT64_MAX;
    struct Write {
        std::uint64_t offset;
        std::vector<std::byte> bytes;
    };
    void write_back(const Write& write, std::uint64_t begin, std::uint64_t end);
    void write_back_oldest();
    void cut_durable();

    bool hollow_;
    std::uint64_t bytes_ = 0;
    std::int64_t modified_ns_ = 0;
    std::uint64_t durable_bytes_ = 0;
    std::uint64_t cut_to_ = kNotCut;  ///< smallest size since the last sync: zeros beyond it
    std::vector<std::byte> data_;
    std::vector<std::byte> durable_;
    std::vector<Write> cache_;
    std::uint64_t cache_bytes_ = 0;
};

}  // namespace penstock::simulation
