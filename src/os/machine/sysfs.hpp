// SPDX-License-Identifier: Apache-2.0
// Small files of the kernel with one value each.
#pragma once

#include "os/file.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace penstock::os {

/// The text of a file of /proc or /sys without the blanks at its end; empty optional when it cannot
/// be read.
[[nodiscard]] std::optional<std::string> read_text(const std::string& path);

/// The number that a file starts with.
[[nodiscard]] std::optional<std::int64_t> read_number(const std::string& path);

/// The disk of a partition; any other device is its own. Two partitions of one disk share its
/// speed, so they share its domain.
[[nodiscard]] DeviceId whole_disk(DeviceId id);

/// "/sys/dev/block/259:0"
[[nodiscard]] std::string sysfs_folder(DeviceId id);

}  // namespace penstock::os
