// SPDX-License-Identifier: Apache-2.0
// Blocks that are handed out, returned automatically, and kept: memory that was touched and locked
// once is too expensive to free. Sizes are rounded up to classes, by at most an eighth or 4 KiB;
// the kept bytes are bounded.
#pragma once

#include "base/of_process.hpp"
#include "memory/block.hpp"

#include <cstdint>
#include <memory>

namespace penstock::memory {

class Pool;

/// A block on loan; returns itself. May outlive the pool. With 0 bytes: no memory, null.
class PooledBlock {
public:
    PooledBlock() = default;
    PooledBlock(PooledBlock&& other) noexcept;
    PooledBlock& operator=(PooledBlock&& other) noexcept;
    ~PooledBlock();

    [[nodiscard]] std::byte* data() const { return block_.data(); }
    [[nodiscard]] std::uint64_t size() const { return bytes_; }  ///< as requested
    [[nodiscard]] const Block& block() const { return block_; }
    /// It was handed out before: pages of it are there.
    [[nodiscard]] bool used() const { return used_; }

private:
    friend class Pool;
    struct Shelf;
    PooledBlock(Block block, std::uint64_t bytes, bool used, std::shared_ptr<Shelf> shelf);
    void give_back() noexcept;

    Block block_;
    std::uint64_t bytes_ = 0;
    bool used_ = false;
    std::shared_ptr<Shelf> shelf_;
};

/// Thread-safe. A child of fork() begins with an empty one.
class Pool {
public:
    struct Options {
        std::uint64_t kept_bytes_max = std::uint64_t{1} << 30;
        BlockOptions block;
    };
    Pool() : Pool(Options()) {}
    explicit Pool(const Options& options);
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;
    ~Pool();

    /// Contents are undefined. `bytes` may be 0.
    [[nodiscard]] base::Result<PooledBlock> take(std::uint64_t bytes);
    [[nodiscard]] std::uint64_t kept_bytes() const;
    /// Returns all kept blocks to the system.
    void trim();

private:
    Options options_;
    base::OfProcess<PooledBlock::Shelf> shelf_;
};

}  // namespace penstock::memory
