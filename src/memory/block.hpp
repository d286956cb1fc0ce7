// SPDX-License-Identifier: Apache-2.0
// A piece of anonymous memory with one owner: page-aligned (2 MiB-aligned with huge pages from 2
// MiB up), zero, given back to the system when destroyed.
#pragma once

#include "base/result.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock::memory {

struct BlockOptions {
    bool huge_pages = true;  ///< ask for transparent huge pages from 2 MiB up
    bool touch = false;      ///< fault every page in now
    bool lock = false;  ///< mlock; if the limit forbids it the block is not locked and reports why
    bool keep_on_fork = true;  ///< false: MADV_DONTFORK
    bool reserve = true;       ///< false: MAP_NORESERVE, addresses that may be more than the memory
    bool lasting = false;      ///< nobody gives pages of it back before its end: LastingMemory
};

class Block {
public:
    Block() = default;
    [[nodiscard]] static base::Result<Block> make(std::uint64_t bytes, BlockOptions options = {});
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) noexcept;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block();

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::uint64_t size() const { return bytes_; }
    [[nodiscard]] std::span<std::byte> bytes() const { return {data_, bytes_}; }
    [[nodiscard]] bool locked() const { return locked_; }
    /// Empty, or requests that failed (locking, huge pages), and why.
    [[nodiscard]] const std::string& shortfall() const { return shortfall_; }

    /// Gives the memory up: it stays until the process ends.
    void leave() noexcept;
    /// May the system make huge pages of it later? Advice, about all of it.
    void allow_huge_pages(bool allow) const noexcept;

private:
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;  ///< as requested; the mapping is rounded up to pages
    std::uint64_t mapped_bytes_ = 0;
    pid_t process_ = 0;  ///< that has the mapping; 0: its children, too
    bool locked_ = false;
    bool lasting_ = false;
    std::string shortfall_;
};

}  // namespace penstock::memory
