// SPDX-License-Identifier: Apache-2.0
// Memory is faulted in ahead of the reads into it, by a thread that is idle: else the device
// waits while the kernel does it, page by page. Of memory that is there already it costs a look at
// each page.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::stream {

/// Neighbours are faulted in together. An error is none: the read itself faults in what is not
/// there. Allocates nothing.
class Touch {
public:
    Touch() = default;
    Touch(const Touch&) = delete;
    Touch& operator=(const Touch&) = delete;
    ~Touch() { flush(); }

    void add(const std::byte* data, std::uint64_t bytes) noexcept;

private:
    void flush() noexcept;

    std::uintptr_t begin_ = 0;  // whole pages, not faulted in yet
    std::uintptr_t end_ = 0;
};

}  // namespace penstock::stream
