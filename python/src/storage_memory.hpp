// SPDX-License-Identifier: Apache-2.0
// The memory of a torch storage, on the host or on a GPU, and the streams that its work is on.
#pragma once

#include "nanobind.hpp"

#include <penstock/gpu.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::python {

/// The memory of one storage of the tree, of the host or of a GPU, for as long as `keep` lives.
struct StorageMemory {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    nb::object keep;
    bool copied = false;  ///< made for this save, from a device: nobody else changes it
    MemoryKind where = MemoryKind::kHost;
    std::int32_t device = 0;  ///< of MemoryKind::kDevice: its number

    [[nodiscard]] ConstMemory memory() const { return {data, bytes, where, device}; }
};

/// Finds the memory of a CUDA storage at `address`; false where torch has to copy it to the host:
/// there is no driver that is new enough. Throws Error for memory that the driver does not know.
[[nodiscard]] bool place_on_gpu(StorageMemory& memory, std::uintptr_t address);
/// The streams whose work comes before memory of GPUs is read: torch's current ones.
[[nodiscard]] std::vector<StreamHandle> streams_of(const std::vector<StorageMemory>& storages);
/// The same before it is read into: torch may have given memory that its stream still uses.
[[nodiscard]] std::vector<StreamHandle> streams_of(std::span<const Memory> memory);

}  // namespace penstock::python
