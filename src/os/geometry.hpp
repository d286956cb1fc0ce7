// SPDX-License-Identifier: Apache-2.0
// The requirements of direct I/O on an open file. The kernel is queried, never tried: a successful
// open with O_DIRECT, or one transfer, proves nothing (tmpfs takes both and caches all the same).
// The rungs, from the most exact down:
//
//   statx        STATX_DIOALIGN and STATX_DIO_READ_ALIGN; per file, exact (Linux 6.1, 6.14)
//   XFS ioctl    XFS_IOC_DIOINFO, on XFS only
//   block size   the logical block size of the device, for memory as well
//   assumed      4096
#pragma once

#include "os/file.hpp"

#include <cstdint>

namespace penstock::os {

enum class GeometryRung : std::uint8_t { kStatx, kXfsIoctl, kLogicalBlock, kAssumed };

/// The geometry of an open descriptor (with or without O_DIRECT). `direct` means that direct I/O is
/// possible; the caller has to open a descriptor for it. Rungs before `first` are skipped, as on a
/// kernel without them.
[[nodiscard]] Geometry probe_geometry(int fd, GeometryRung first = GeometryRung::kStatx);

/// "ext4", "tmpfs", ..., or "block device".
[[nodiscard]] std::string file_system_of(int fd);

/// Both, with fewer questions.
struct ProbedFile {
    std::string file_system;
    Geometry geometry;
};
[[nodiscard]] ProbedFile probe_file(int fd);

}  // namespace penstock::os
