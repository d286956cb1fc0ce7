// SPDX-License-Identifier: Apache-2.0
// The error of a call that was given memory of a device.
#pragma once

#include "base/result.hpp"

#include <penstock/types.hpp>

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace penstock::base {

/// `what` has the memory: "extent 3", "tensor 'weight'".
template <typename Byte>
[[nodiscard]] Error not_host_memory(const char* operation, std::string_view what,
                                    const BasicMemory<Byte>& memory, const std::string& path = {}) {
    return error(ErrorCode::kUnsupported, operation,
                 fmt::format("{} has memory of device {}, and only memory of the host is taken "
                             "here; copy it there first",
                             what, memory.device),
                 path);
}

}  // namespace penstock::base
