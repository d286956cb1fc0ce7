// SPDX-License-Identifier: Apache-2.0
// The memory of a ring: zeros in the child of a fork, so that who asks there finds no server;
// pinned and mapped for a GPU where one asks.
#pragma once

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>

#include <cstddef>
#include <cstdint>

namespace penstock::features {

class RingMemory {
public:
    /// Zeroed. `gpu`: -1 for none. Throws Error.
    RingMemory(std::uint64_t bytes, std::int32_t gpu);
    [[nodiscard]] std::byte* data() const { return buffer_.data(); }
    /// The same memory as the GPU addresses it; nullptr without one.
    [[nodiscard]] std::byte* gpu_data() const {
        return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(mapped_.gpu_address()));
    }

private:
    MemoryPool pool_;  ///< of its own: nobody else has the pages afterwards
    Buffer buffer_;
    PinnedMemory mapped_;
};

}  // namespace penstock::features
