// SPDX-License-Identifier: Apache-2.0
// Addresses for tensors. Memory is taken page by page when it is written to, and can be given back
// while the addresses stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace penstock::weights {

/// Thread-safe.
class Arena {
public:
    enum class Pages : std::uint8_t {
        kHuge,   ///< where the system has them: for memory that is all used
        kSmall,  ///< no more than what is written to
    };
    /// Throws Error: kOutOfMemory, with the size.
    Arena(std::uint64_t bytes, Pages pages);
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::uint64_t size() const { return bytes_; }
    /// Gives the whole pages of a range back to the system. They are zeros from then on.
    void drop(std::uint64_t begin, std::uint64_t bytes) noexcept;

private:
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
};

}  // namespace penstock::weights
