// SPDX-License-Identifier: Apache-2.0
#include "os/geometry.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "os/file_system_type.hpp"
#include "os/machine/sysfs.hpp"
#include "os/statx.hpp"

#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <optional>

namespace penstock::os {

namespace {

// Query results, passed down the rungs.
struct Asked {
    int fd = -1;
    struct stat status {};
    bool is_block_device = false;
    std::uint64_t magic = 0;
    std::uint32_t block_bytes = 4096;
    std::string file_system;
};

constexpr std::uint32_t kAlignMax = 1U << 20;  // a larger answer is no alignment
// Network file systems report the request size that suits them, which is no block.
constexpr std::uint32_t kBlockMax = 64U << 10;

bool plausible(std::uint64_t align) {
    return base::is_power_of_two(align) && align <= kAlignMax;
}

Geometry aligned(const Asked& asked, std::uint32_t memory, std::uint32_t read, std::uint32_t write,
                 std::string reason) {
    PENSTOCK_ASSERT(plausible(memory) && plausible(read) && plausible(write));
    Geometry geometry;
    geometry.direct = true;
    geometry.memory_align = memory;
    geometry.read_align = read;
    geometry.write_align = write;
    geometry.block_bytes = asked.block_bytes;
    geometry.reason = std::move(reason);
    return geometry;
}

Geometry not_direct(const Asked& asked, std::string reason) {
    Geometry geometry;
    geometry.block_bytes = asked.block_bytes;
    geometry.reason = std::move(reason);
    return geometry;
}

std::optional<Geometry> by_statx(const Asked& asked) {
    Statx x;
    if (statx_of(asked.fd, kStatxDioAlign | kStatxDioReadAlign, x) != 0 ||
        (x.mask & kStatxDioAlign) == 0) {
        return std::nullopt;
    }
    if (x.dio_offset_align == 0 || x.dio_memory_align == 0) {
        return not_direct(
            asked, fmt::format("statx says that {} has no direct I/O on this file (encryption, "
                               "verity, data journalling, inline data or compression)",
                               asked.file_system));
    }
    std::uint32_t read = x.dio_offset_align;
    if ((x.mask & kStatxDioReadAlign) != 0 && plausible(x.dio_read_offset_align)) {
        read = x.dio_read_offset_align;
    }
    if (!plausible(x.dio_memory_align) || !plausible(x.dio_offset_align)) {
        return std::nullopt;
    }
    return aligned(asked, x.dio_memory_align, read, x.dio_offset_align, "statx (STATX_DIOALIGN)");
}

std::optional<Geometry> by_xfs_ioctl(const Asked& asked) {
    struct DioInfo {  // struct dioattr of xfs_fs.h
        std::uint32_t memory_align;
        std::uint32_t io_bytes_min;
        std::uint32_t io_bytes_max;
    };
    DioInfo info{};
    if (asked.is_block_device || asked.magic != kXfsMagic ||
        ::ioctl(asked.fd, _IOR('X', 30, DioInfo), &info) != 0 || !plausible(info.memory_align) ||
        !plausible(info.io_bytes_min)) {
        return std::nullopt;
    }
    return aligned(asked, info.memory_align, info.io_bytes_min, info.io_bytes_min,
                   "XFS_IOC_DIOINFO (statx does not say)");
}

std::optional<Geometry> by_logical_block(const Asked& asked) {
    std::uint64_t block = 0;
    std::string source;
    if (asked.is_block_device) {
        int bytes = 0;
        if (::ioctl(asked.fd, BLKSSZGET, &bytes) == 0 && bytes > 0) {
            block = static_cast<std::uint64_t>(bytes);
        }
        source = "BLKSSZGET";
    } else {
        const DeviceId disk = whole_disk({static_cast<std::uint32_t>(major(asked.status.st_dev)),
                                          static_cast<std::uint32_t>(minor(asked.status.st_dev))});
        const std::string path = sysfs_folder(disk) + "/queue/logical_block_size";
        block = static_cast<std::uint64_t>(read_number(path).value_or(0));
        source = path;
    }
    if (!plausible(block) || block < 512) {
        return std::nullopt;
    }
    const auto bytes = static_cast<std::uint32_t>(block);
    return aligned(
        asked, bytes, bytes, bytes,
        fmt::format("logical block size of the device ({}; statx does not say)", source));
}

Asked ask(int fd) {
    Asked asked;
    asked.fd = fd;
    if (::fstat(fd, &asked.status) == 0) {
        asked.is_block_device = S_ISBLK(asked.status.st_mode);
    }
    if (asked.is_block_device) {
        // statfs would describe the file system that holds the device node.
        asked.file_system = "block device";
        int bytes = 0;
        if (::ioctl(fd, BLKSSZGET, &bytes) == 0 && plausible(static_cast<std::uint64_t>(bytes))) {
            asked.block_bytes = static_cast<std::uint32_t>(bytes);
        }
        return asked;
    }
    struct statfs status {};
    if (::fstatfs(fd, &status) == 0) {
        asked.magic = static_cast<std::uint32_t>(status.f_type);
        if (plausible(static_cast<std::uint64_t>(status.f_bsize)) && status.f_bsize >= 512) {
            asked.block_bytes = std::min(static_cast<std::uint32_t>(status.f_bsize), kBlockMax);
        }
    }
    asked.file_system = file_system_type(asked.magic).name;
    return asked;
}

Geometry probe(const Asked& asked, GeometryRung first) {
    if (!asked.is_block_device) {
        const FileSystemType type = file_system_type(asked.magic);
        if (!type.no_direct.empty()) {
            return not_direct(asked,
                              fmt::format("{} has no direct I/O: {}", type.name, type.no_direct));
        }
    }
    std::optional<Geometry> found;
    if (first <= GeometryRung::kStatx) {
        found = by_statx(asked);
    }
    if (!found && first <= GeometryRung::kXfsIoctl) {
        found = by_xfs_ioctl(asked);
    }
    if (!found && first <= GeometryRung::kLogicalBlock) {
        found = by_logical_block(asked);
    }
    if (!found) {
        found = aligned(
            asked, 4096, 4096, 4096,
            fmt::format("4096 assumed (neither statx nor a device of {} says)", asked.file_system));
    }
    if (found->direct && asked.magic == kBtrfsMagic) {
        found->reason +=
            "; btrfs itself caches direct writes of files with checksums (NODATASUM avoids that)";
    }
    return *found;
}

}  // namespace

std::string file_system_of(int fd) {
    return ask(fd).file_system;
}

Geometry probe_geometry(int fd, GeometryRung first) {
    return probe(ask(fd), first);
}

ProbedFile probe_file(int fd) {
    Asked asked = ask(fd);
    Geometry geometry = probe(asked, GeometryRung::kStatx);
    return {std::move(asked.file_system), std::move(geometry)};
}

}  // namespace penstock::os
