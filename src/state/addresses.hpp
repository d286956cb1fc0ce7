// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <penstock/error.hpp>

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace penstock::state {

// Placeholder addresses of storages, none of which is ever accessed: state_of() finds the storage
// and offset of each tensor by the address of its bytes.
class Addresses {
public:
    explicit Addresses(std::uint64_t bytes) : bytes_(std::max<std::uint64_t>(bytes, 1)) {
        void* const begin =
            ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (begin == MAP_FAILED) {
            throw Error(ErrorCode::kOutOfMemory, 0, "mmap", "", kNoOffset,
                        fmt::format("there are no {} bytes of addresses for the storages of the "
                                    "file",
                                    bytes_));
        }
        begin_ = static_cast<const std::byte*>(begin);
    }
    Addresses(const Addresses&) = delete;
    Addresses& operator=(const Addresses&) = delete;
    ~Addresses() { ::munmap(const_cast<std::byte*>(begin_), bytes_); }
    [[nodiscard]] const std::byte* begin() const { return begin_; }

private:
    std::uint64_t bytes_;
    const std::byte* begin_ = nullptr;
};

}  // namespace penstock::state
