// SPDX-License-Identifier: Apache-2.0
// Whose memory an address is: the driver is asked, not the caller.
#pragma once

#include "base/result.hpp"
#include "device/cuda/driver.hpp"
#include "engine/extents.hpp"

#include <penstock/types.hpp>

#include <cstdint>

namespace penstock::device {

enum class PointerKind : std::uint8_t {
    kUnknown,         ///< not to the driver: ordinary host memory, freed, or of another process
    kRegisteredHost,  ///< host memory that CUDA made or that was registered with it
    kManaged,         ///< both sides may touch it
    kDevice,
};

struct PointerFacts {
    PointerKind kind = PointerKind::kUnknown;
    std::int32_t device = -1;
    std::uintptr_t begin = 0;  ///< of the allocation that it lies in, or of the reserved addresses
    std::uint64_t bytes = 0;   ///< of that
};

/// Thread-safe.
[[nodiscard]] base::Result<PointerFacts> pointer_facts(const Driver& driver, const void* pointer);

/// penstock::device_memory(), with its errors as values.
[[nodiscard]] base::Result<Memory> memory_at(void* pointer, std::uint64_t bytes);

/// Is this memory of a GPU what it claims to be? kInvalidArgument where it is not.
[[nodiscard]] base::Result<void> check_memory(const Driver& driver, const Memory& claim);

/// Is memory of GPUs what its extents say? kInvalidArgument where it is not of that GPU, was freed
/// or reaches past its allocation; the message names the extent. Host memory is taken as it is. The
/// driver is asked once for extents in a row that lie in one allocation.
[[nodiscard]] base::Result<void> check_extents(const engine::Extents& extents);

}  // namespace penstock::device
