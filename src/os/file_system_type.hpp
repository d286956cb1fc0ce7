// SPDX-License-Identifier: Apache-2.0
// Tells file systems apart by the magic number of statfs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::os {

struct FileSystemType {
    std::string name;  ///< "ext4", "xfs", "tmpfs", ..., "unknown (0x1234)"
    /// Empty, or why it has no direct I/O. Opening with O_DIRECT succeeds on some of these.
    std::string_view no_direct;
};

[[nodiscard]] FileSystemType file_system_type(std::uint64_t magic);

/// Whether files of such a name are cached by this machine's page cache alone, so that what is in
/// it is as good as what is on the device, and asking costs no server.
[[nodiscard]] bool keeps_page_cache(std::string_view file_system);
/// Whether a program serves such a file system (FUSE).
[[nodiscard]] bool is_in_user_space(std::string_view file_system);
/// Whether the page cache is all that such a file system has.
[[nodiscard]] bool is_in_memory(std::string_view file_system);

inline constexpr std::uint64_t kXfsMagic = 0x58465342;
inline constexpr std::uint64_t kBtrfsMagic = 0x9123683e;
inline constexpr std::uint64_t kTmpfsMagic = 0x01021994;
inline constexpr std::uint64_t kFuseMagic = 0x65735546;

}  // namespace penstock::os
