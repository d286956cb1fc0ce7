// SPDX-License-Identifier: Apache-2.0
// The device that a path leads to, from the text of the path and the table of mounts: the file
// systems themselves are not queried, since one whose server is gone does not answer.
#pragma once

#include "os/file.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace penstock::os {

struct Mount {
    std::string folder;
    DeviceId device;
};

/// The mounts of this process, in the order of their making. Empty if /proc is not available.
[[nodiscard]] std::vector<Mount> mounts();

/// Parses lines of a mountinfo: "36 35 98:0 /mnt1 /mnt/two\040words rw,noatime - ext3 /dev/root
/// rw".
[[nodiscard]] std::vector<Mount> parse_mountinfo(const std::string& text);

/// The device of the mount with the longest folder above `path`, which is absolute; {} when there
/// is none. Symbolic links are not followed.
[[nodiscard]] DeviceId device_of_path(const std::vector<Mount>& mounts, std::string_view path);

}  // namespace penstock::os
