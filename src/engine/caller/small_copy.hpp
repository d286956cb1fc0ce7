// SPDX-License-Identifier: Apache-2.0
// A small piece of a device's memory, brought to the host or from there while its caller waits: by
// pinned memory that nobody else has meanwhile. So a small read or write of it is no transfer.
#pragma once

#include "engine/caller/ways.hpp"

#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace penstock::engine {

/// One thread at a time.
class SmallCopy {
public:
    static constexpr std::uint64_t kBytes = ways::kDeviceBytesMax;

    virtual ~SmallCopy() = default;
    /// Memory of the host: kBytes, page-aligned.
    [[nodiscard]] virtual std::byte* buffer() const = 0;
    /// Copies from the buffer. False where the driver refuses: nothing is copied any more, and the
    /// content of `to` is undefined.
    [[nodiscard]] virtual bool copy_in(const Memory& to) = 0;
    /// Copies to the buffer.
    [[nodiscard]] virtual bool copy_out(const Memory& from) = 0;
};

/// For a piece of at most kBytes. nullptr where a transfer has to do it: the work of `streams`
/// (none: of the default stream) has not passed yet, or something is wrong, which it says.
/// Thread-safe.
using TakeSmallCopy = std::function<std::unique_ptr<SmallCopy>(
    const Memory& memory, std::span<const StreamHandle> streams)>;

}  // namespace penstock::engine
