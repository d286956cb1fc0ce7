// SPDX-License-Identifier: Apache-2.0
#include "os/file_system_type.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace penstock::os {

namespace {

struct Known {
    std::uint64_t magic;
    std::string_view name;
    std::string_view no_direct;
};

constexpr std::string_view kInMemory =
    "it keeps its files in memory, so that direct I/O has nothing to pass by";
constexpr std::string_view kDaemon =
    "a user-space program serves it and decides what is cached, whatever O_DIRECT says; it is read "
    "and written by blocking calls on threads, not by io_uring";
constexpr std::string_view kNoData = "its files are made by the kernel as they are read";

constexpr std::array<Known, 23> kTypes{{
    {0xef53, "ext4", {}},
    {kXfsMagic, "xfs", {}},
    {kBtrfsMagic, "btrfs", {}},
    {kTmpfsMagic, "tmpfs", kInMemory},
    {0x858458f6, "ramfs", kInMemory},
    {0x958458f6, "hugetlbfs", kInMemory},
    {0x794c7630, "overlay", {}},
    {0x2fc12fc1, "zfs", {}},
    {0xf2f52010, "f2fs", {}},
    {0xca451a4e, "bcachefs", {}},
    {0x6969, "nfs", {}},
    {kFuseMagic, "fuse", kDaemon},
    {0x01021997, "9p", {}},
    {0xff534d42, "cifs", {}},
    {0xfe534d42, "smb2", {}},
    {0x00c36400, "ceph", {}},
    {0x0bd00bd0, "lustre", {}},
    {0x47504653, "gpfs", {}},
    {0x73717368, "squashfs", {}},
    {0x4d44, "vfat", {}},
    {0x2011bab0, "exfat", {}},
    {0x9fa0, "proc", kNoData},
    {0x62656572, "sysfs", kNoData},
}};

}  // namespace

FileSystemType file_system_type(std::uint64_t magic) {
    for (const Known& known : kTypes) {
        if (known.magic == magic) {
            return {std::string(known.name), known.no_direct};
        }
    }
    return {fmt::format("unknown ({:#x})", magic), {}};
}

bool keeps_page_cache(std::string_view file_system) {
    constexpr std::array<std::string_view, 8> kLocal{"ext4", "xfs",      "btrfs", "overlay",
                                                     "f2fs", "bcachefs", "vfat",  "exfat"};
    return std::find(kLocal.begin(), kLocal.end(), file_system) != kLocal.end();
}

bool is_in_user_space(std::string_view file_system) {
    return file_system == "fuse";
}

bool is_in_memory(std::string_view file_system) {
    return file_system == "tmpfs" || file_system == "ramfs";
}

}  // namespace penstock::os
