// SPDX-License-Identifier: Apache-2.0
// A way of bytes between files and the memory of devices that needs no slot: the disk reaches that
// memory itself (cuFile). The plan asks what may go this way, and yields requests without a slot
// for it; the channel hands them to threads, for the calls of such a way block. What is refused
// goes through a slot, as all else does, and is counted.
#pragma once

#include "base/result.hpp"
#include "engine/extents.hpp"
#include "engine/request.hpp"
#include "os/file.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace penstock::engine {

/// Thread-safe.
class DevicePath {
public:
    virtual ~DevicePath() = default;

    /// May requests between this file and memory of this place be tried? Their offset, length and
    /// address are multiples of kDevicePathAlign. On a channel's thread: waits for no device.
    [[nodiscard]] virtual bool takes(os::File& file, const MemoryPlace& place) = 0;

    /// A transfer fails with why_not() where takes() says no, and reads do not look into the page
    /// cache; else what it does not take goes another way, without an error.
    [[nodiscard]] virtual bool required() const = 0;
    [[nodiscard]] virtual base::Error why_not(os::File& file, const MemoryPlace& place) = 0;

    /// Blocks. Returns the bytes that were moved, from the first on, or a negative number where
    /// this request was refused. What a refused or short request moved may be moved again.
    [[nodiscard]] virtual std::int64_t move(Op op, os::File& file, const MemoryPlace& place,
                                            std::byte* memory, std::uint64_t bytes,
                                            std::uint64_t offset) noexcept = 0;

    /// For describe(): whether it is used, and what it refused last.
    [[nodiscard]] virtual std::string text() = 0;
};

}  // namespace penstock::engine
