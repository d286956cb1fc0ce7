// SPDX-License-Identifier: Apache-2.0
// Chooses a folder for each file, when there are several: the next one goes to the folder that
// would finish it first, each at its own speed, as long as there is room. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::store {

struct FolderRoom {
    std::string path;
    double bytes_per_second = 0;   ///< of the last save; 0: not known, as fast as the others
    std::uint64_t device = 0;      ///< folders of one device share its room
    std::uint64_t free_bytes = 0;  ///< on that device
};

/// The folder of each file. `first_bytes` more are needed in the first one. Throws ENOSPC with the
/// number of missing bytes.
[[nodiscard]] std::vector<std::uint32_t> place_files(std::span<const std::uint64_t> file_bytes,
                                                     std::span<const FolderRoom> folders,
                                                     std::uint64_t first_bytes);

}  // namespace penstock::store
