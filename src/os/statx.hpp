// SPDX-License-Identifier: Apache-2.0
// statx with the fields that direct I/O needs. The struct is our own: the C library and kernel
// headers of the oldest supported distribution lack the newer fields, which the running kernel may
// have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::os {

struct StatxTime {
    std::int64_t seconds;
    std::uint32_t nanoseconds;
    std::int32_t reserved;
};

/// The kernel's `struct statx`.
struct Statx {
    std::uint32_t mask;  ///< what the kernel filled in; a field without its bit means nothing
    std::uint32_t block_bytes;
    std::uint64_t attributes;
    std::uint32_t links;
    std::uint32_t uid;
    std::uint32_t gid;
    std::uint16_t mode;
    std::uint16_t spare0;
    std::uint64_t inode;
    std::uint64_t bytes;
    std::uint64_t blocks;
    std::uint64_t attributes_mask;
    StatxTime access_time;
    StatxTime birth_time;
    StatxTime change_time;
    StatxTime modification_time;
    std::uint32_t rdev_major;
    std::uint32_t rdev_minor;
    std::uint32_t dev_major;
    std::uint32_t dev_minor;
    std::uint64_t mount_id;
    std::uint32_t dio_memory_align;
    std::uint32_t dio_offset_align;  ///< 0: no direct I/O on this file
    std::uint64_t subvolume;
    std::uint32_t atomic_write_bytes_min;
    std::uint32_t atomic_write_bytes_max;
    std::uint32_t atomic_write_segments_max;
    std::uint32_t dio_read_offset_align;
    std::uint64_t spare[9];
};
static_assert(sizeof(Statx) == 256);
static_assert(offsetof(Statx, inode) == 0x20);
static_assert(offsetof(Statx, access_time) == 0x40);
static_assert(offsetof(Statx, rdev_major) == 0x80);
static_assert(offsetof(Statx, dio_memory_align) == 0x98);
static_assert(offsetof(Statx, dio_offset_align) == 0x9c);
static_assert(offsetof(Statx, dio_read_offset_align) == 0xb4);

inline constexpr std::uint32_t kStatxMountId = 0x1000;        // Linux 5.8
inline constexpr std::uint32_t kStatxDioAlign = 0x2000;       // Linux 6.1
inline constexpr std::uint32_t kStatxDioReadAlign = 0x20000;  // Linux 6.14

inline constexpr std::uint32_t kStatxSize = 0x200;

/// statx of an open descriptor. 0 or an errno. `dont_sync`: uses cached attributes, without a
/// request to a server.
[[nodiscard]] int statx_of(int fd, std::uint32_t mask, Statx& out, bool dont_sync = false);

}  // namespace penstock::os
