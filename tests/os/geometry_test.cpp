// SPDX-License-Identifier: Apache-2.0
#include "os/geometry.hpp"

#include "base/unique_fd.hpp"
#include "os/file_system_type.hpp"
#include "os/machine/limits.hpp"
#include "os/machine/sysfs.hpp"
#include "os/statx.hpp"
#include "support/loop_mount.hpp"
#include "support/temp_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/blkpg.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstdint>
#include <string>

namespace penstock::os {
namespace {

using ::testing::HasSubstr;

base::UniqueFd new_file(const std::string& path) {
    return base::UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
}

void expect_aligned(const Geometry& geometry, std::uint32_t align) {
    EXPECT_TRUE(geometry.direct) << geometry.reason;
    EXPECT_EQ(geometry.memory_align, align) << geometry.reason;
    EXPECT_EQ(geometry.read_align, align) << geometry.reason;
    EXPECT_EQ(geometry.write_align, align) << geometry.reason;
}

TEST(Geometry, TmpfsIsNotDirectThoughItOpensWithODirect) {
    const support::TempFolder folder("/dev/shm");
    base::UniqueFd fd(
        ::open((folder / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0666));
    // Linux takes the flag for tmpfs since 6.6; the report about the file must not depend on it.
    if (release_at_least(kernel_release(), 6, 6)) {
        ASSERT_TRUE(fd) << "tmpfs refuses O_DIRECT now? then this test proves nothing";
    } else if (!fd) {
        fd = new_file(folder / "f");
        ASSERT_TRUE(fd);
    }
    for (const GeometryRung rung : {GeometryRung::kStatx, GeometryRung::kAssumed}) {
        const Geometry geometry = probe_geometry(fd.get(), rung);
        EXPECT_FALSE(geometry.direct);
        EXPECT_EQ(geometry.memory_align, 1U);
        EXPECT_EQ(geometry.read_align, 1U);
        EXPECT_EQ(geometry.write_align, 1U);
        EXPECT_THAT(geometry.reason, HasSubstr("tmpfs"));
    }
    EXPECT_EQ(file_system_of(fd.get()), "tmpfs");
}

TEST(Geometry, OfTheDiskHere) {
    const support::TempFolder folder;
    const base::UniqueFd fd = new_file(folder / "f");
    ASSERT_TRUE(fd);
    Statx x;
    const bool known = statx_of(fd.get(), kStatxDioAlign, x) == 0 && (x.mask & kStatxDioAlign) != 0;
    const Geometry geometry = probe_geometry(fd.get());
    if (known && x.dio_offset_align != 0) {
        EXPECT_TRUE(geometry.direct);
        EXPECT_EQ(geometry.memory_align, x.dio_memory_align);
        EXPECT_EQ(geometry.write_align, x.dio_offset_align);
        EXPECT_LE(geometry.read_align, geometry.write_align);
        EXPECT_THAT(geometry.reason, HasSubstr("statx"));
    }
    EXPECT_FALSE(geometry.reason.empty());
    EXPECT_GE(geometry.edge_align(), 4096U);
}

TEST(Geometry, EachRungOfExt4) {
    PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{});
    const base::UniqueFd fd = new_file(mount / "f");
    ASSERT_TRUE(fd);
    const Geometry logical = probe_geometry(fd.get(), GeometryRung::kLogicalBlock);
    expect_aligned(logical, 512);
    EXPECT_THAT(logical.reason, HasSubstr("logical_block_size"));
    const Geometry skipped = probe_geometry(fd.get(), GeometryRung::kXfsIoctl);
    EXPECT_EQ(skipped.reason, logical.reason);  // the XFS rung is for XFS alone
    const Geometry assumed = probe_geometry(fd.get(), GeometryRung::kAssumed);
    expect_aligned(assumed, 4096);
    EXPECT_THAT(assumed.reason, HasSubstr("4096 assumed"));
    EXPECT_THAT(assumed.reason, HasSubstr("ext4"));
    if (release_at_least(kernel_release(), 6, 1)) {
        const Geometry best = probe_geometry(fd.get());
        expect_aligned(best, 512);
        EXPECT_THAT(best.reason, HasSubstr("STATX_DIOALIGN"));
        EXPECT_EQ(best.block_bytes, 4096U);
    }
}

TEST(Geometry, SectorsOf4096) {
    support::LoopOptions options;
    options.sector_bytes = 4096;
    PENSTOCK_LOOP_MOUNT(mount, options);
    const base::UniqueFd fd = new_file(mount / "f");
    const Geometry best = probe_geometry(fd.get());
    EXPECT_TRUE(best.direct);
    EXPECT_EQ(best.write_align, 4096U) << best.reason;
    expect_aligned(probe_geometry(fd.get(), GeometryRung::kLogicalBlock), 4096);
}

TEST(Geometry, Ext4JournallingDataIsNotDirect) {
    if (!release_at_least(kernel_release(), 6, 1)) {
        GTEST_SKIP() << "this kernel's statx does not speak of direct I/O";
    }
    support::LoopOptions options;
    options.mount_data = "data=journal";
    PENSTOCK_LOOP_MOUNT(mount, options);
    const base::UniqueFd fd = new_file(mount / "f");
    const Geometry geometry = probe_geometry(fd.get());
    EXPECT_FALSE(geometry.direct);
    EXPECT_THAT(geometry.reason, HasSubstr("ext4"));
    EXPECT_THAT(geometry.reason, HasSubstr("statx"));
}

TEST(Geometry, XfsByItsIoctl) {
    PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{.file_system = "xfs"});
    const base::UniqueFd fd = new_file(mount / "f");
    const Geometry geometry = probe_geometry(fd.get(), GeometryRung::kXfsIoctl);
    expect_aligned(geometry, 512);
    EXPECT_THAT(geometry.reason, HasSubstr("XFS_IOC_DIOINFO"));
    EXPECT_EQ(file_system_of(fd.get()), "xfs");
}

TEST(Geometry, XfsFileThatSharesExtentsReadsFinerThanItWrites) {
    if (!release_at_least(kernel_release(), 6, 14)) {
        GTEST_SKIP() << "STATX_DIO_READ_ALIGN came with Linux 6.14";
    }
    PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{.file_system = "xfs"});
    const base::UniqueFd source = new_file(mount / "source");
    const std::string data(65536, 'x');
    ASSERT_EQ(::pwrite(source.get(), data.data(), data.size(), 0), 65536);
    const base::UniqueFd copy = new_file(mount / "copy");
    ASSERT_EQ(::ioctl(copy.get(), FICLONE, source.get()), 0);
    const Geometry geometry = probe_geometry(copy.get());
    EXPECT_EQ(geometry.read_align, 512U);
    EXPECT_EQ(geometry.write_align, 4096U);
    EXPECT_EQ(geometry.edge_align(), 4096U);
}

TEST(Geometry, BtrfsSaysWhatItDoesWithDirectWrites) {
    PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{.file_system = "btrfs"});
    const base::UniqueFd fd = new_file(mount / "f");
    const Geometry geometry = probe_geometry(fd.get());
    EXPECT_TRUE(geometry.direct);
    EXPECT_GE(geometry.write_align, 512U);
    EXPECT_THAT(geometry.reason, HasSubstr("NODATASUM"));
}

TEST(Geometry, OverlayFollowsTheFileBelow) {
    PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{.file_system = "overlay"});
    const base::UniqueFd fd = new_file(mount / "f");
    EXPECT_EQ(file_system_of(fd.get()), "overlay");
    if (release_at_least(kernel_release(), 6, 1)) {
        expect_aligned(probe_geometry(fd.get()), 512);
    }
}

TEST(Geometry, BlockDevice) {
    support::LoopOptions options;
    options.file_system = "none";
    options.sector_bytes = 4096;
    PENSTOCK_LOOP_MOUNT(mount, options);
    const base::UniqueFd fd(::open(mount.device().c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(fd);
    EXPECT_EQ(file_system_of(fd.get()), "block device");  // and not the devtmpfs of its node
    const Geometry geometry = probe_geometry(fd.get());
    EXPECT_TRUE(geometry.direct) << geometry.reason;
    EXPECT_EQ(geometry.write_align, 4096U);
    EXPECT_EQ(geometry.block_bytes, 4096U);
    const Geometry logical = probe_geometry(fd.get(), GeometryRung::kLogicalBlock);
    expect_aligned(logical, 4096);
    EXPECT_THAT(logical.reason, HasSubstr("BLKSSZGET"));
}

// Two partitions of one disk share its speed, so they are one device.
TEST(Geometry, PartitionIsItsDisk) {
    support::LoopOptions options;
    options.file_system = "none";
    PENSTOCK_LOOP_MOUNT(mount, options);
    const base::UniqueFd fd(::open(mount.device().c_str(), O_RDWR | O_CLOEXEC));
    loop_info64 info{};
    ASSERT_EQ(::ioctl(fd.get(), LOOP_GET_STATUS64, &info), 0);
    info.lo_flags |= LO_FLAGS_PARTSCAN;
    ASSERT_EQ(::ioctl(fd.get(), LOOP_SET_STATUS64, &info), 0);
    blkpg_partition partition{};
    partition.start = 1 << 20;
    partition.length = 64 << 20;
    partition.pno = 2;
    blkpg_ioctl_arg argument{BLKPG_ADD_PARTITION, 0, sizeof partition, &partition};
    if (::ioctl(fd.get(), BLKPG, &argument) != 0) {
        GTEST_SKIP() << "loop devices take no partitions here: " << errno;
    }
    struct stat disk {};
    ASSERT_EQ(::fstat(fd.get(), &disk), 0);
    const DeviceId disk_id{major(disk.st_rdev), minor(disk.st_rdev)};
    const std::string name = mount.device().substr(5);
    const auto text = read_text("/sys/block/" + name + "/" + name + "p2/dev");
    ASSERT_TRUE(text);
    DeviceId id;
    ASSERT_EQ(std::sscanf(text->c_str(), "%u:%u", &id.major, &id.minor), 2);
    EXPECT_NE(id, disk_id);
    EXPECT_EQ(whole_disk(id), disk_id);
    EXPECT_EQ(whole_disk(disk_id), disk_id);
    argument.op = BLKPG_DEL_PARTITION;
    EXPECT_EQ(::ioctl(fd.get(), BLKPG, &argument), 0);
}

TEST(FileSystemType, NamesAndReasons) {
    EXPECT_EQ(file_system_type(0xef53).name, "ext4");
    EXPECT_TRUE(file_system_type(0xef53).no_direct.empty());
    EXPECT_EQ(file_system_type(kFuseMagic).name, "fuse");
    EXPECT_FALSE(file_system_type(kFuseMagic).no_direct.empty());
    EXPECT_EQ(file_system_type(0x1234).name, "unknown (0x1234)");
}

// Others than this kernel may keep the pages of a server's files, and a daemon's: they are asked
// only on request.
TEST(FileSystemType, OnlyWhatThisKernelAloneCachesIsAsked) {
    struct Case {
        std::uint64_t magic;
        bool asked;
        bool in_memory;
    };
    for (const Case& one : {Case{0xef53, true, false},       // ext4
                            Case{kXfsMagic, true, false},    // XFS
                            Case{kBtrfsMagic, true, false},  // btrfs
                            Case{0x794c7630, true, false},   // overlay
                            Case{kTmpfsMagic, false, true},  // tmpfs
                            Case{0x858458f6, false, true},   // ramfs
                            Case{0x6969, false, false},      // NFS
                            Case{kFuseMagic, false, false},  // FUSE
                            Case{0x01021997, false, false},  // 9p
                            Case{0x0bd00bd0, false, false},  // Lustre
                            Case{0x00c36400, false, false},  // Ceph
                            Case{0x47504653, false, false},  // GPFS
                            Case{0xff534d42, false, false},  // CIFS
                            Case{0xfe534d42, false, false},  // SMB 2
                            Case{0x2fc12fc1, false, false},  // ZFS, with a cache of its own
                            Case{0x1234, false, false}}) {
        const std::string name = file_system_type(one.magic).name;
        EXPECT_EQ(keeps_page_cache(name), one.asked) << name;
        EXPECT_EQ(is_in_memory(name), one.in_memory) << name;
    }
}

}  // namespace
}  // namespace penstock::os
