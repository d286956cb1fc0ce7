// SPDX-License-Identifier: Apache-2.0
// What a machine must have for cuFile, on trees that lay one out; libcufile is not opened.
#include "device/machine_tree.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <utility>

namespace penstock::device {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kDriver = 13000;
constexpr DeviceId kDisk{259, 1};

Gpu hopper() {
    Gpu gpu;
    gpu.compute_major = 9;
    return gpu;
}

CuFileConditions look(const MachineTree& tree, const char* file_system = "ext4") {
    return cufile_conditions(hopper(), kDriver, FilePlace{kDisk, file_system}, tree.folders());
}

TEST(CuFileConditionsTest, BothWaysAreFoundAndNvidiaFsComesFirst) {
    const MachineTree tree;
    tree.common();
    tree.disk(kDisk, "nvme0n1");
    EXPECT_EQ(look(tree).way, CuFileWay::kNone);
    tree.p2p();
    EXPECT_EQ(look(tree).way, CuFileWay::kP2pDma);
    EXPECT_TRUE(look(tree).reasons.empty());
    tree.nvidia_fs();
    EXPECT_EQ(look(tree).way, CuFileWay::kNvidiaFs);
    EXPECT_EQ(look(tree, "xfs").way, CuFileWay::kNvidiaFs);
    EXPECT_EQ(cufile_conditions(hopper(), kDriver, std::nullopt, tree.folders()).way,
              CuFileWay::kNvidiaFs);
}

// Each thing that is taken away is a reason by itself, and one that names it.
TEST(CuFileConditionsTest, EachThingThatIsMissingIsSaid) {
    using Change = std::function<void(const MachineTree&)>;
    const std::vector<std::pair<Change, const char*>> common{
        {[](const MachineTree& tree) { tree.remove("proc/modules"); }, "proc/modules"},
        {[](const MachineTree& tree) { tree.remove("run/udev"); }, "/run/udev:ro"},
        {[](const MachineTree& tree) { tree.disk(kDisk, "sda"); }, "sda is not NVMe"},
        {[](const MachineTree& tree) { tree.disk(kDisk, "nvme0n1", "tcp"); }, "NVMe over tcp"},
        {[](const MachineTree& tree) { tree.remove("sys/dev/block"); }, "no disk 259:1"},
    };
    const std::vector<std::pair<Change, const char*>> nvidia_fs{
        {[](const MachineTree& tree) { tree.remove("dev/nvidia-fs0"); }, "close descriptor 0"},
        {[](const MachineTree& tree) { tree.remove("proc/driver/nvidia-fs"); }, "by half"},
    };
    const std::vector<std::pair<Change, const char*>> p2p{
        {[](const MachineTree& tree) { tree.write("proc/sys/kernel/osrelease", "6.1.0-13"); },
         "kernel is 6.1.0-13"},
        {[](const MachineTree& tree) { tree.remove("proc/sys/kernel/osrelease"); },
         "kernel is unknown"},
        {[](const MachineTree& tree) {
             tree.write("proc/driver/nvidia/version", "NVIDIA UNIX x86_64 Kernel Module");
         },
         "open one"},
        {[](const MachineTree& tree) { tree.write("proc/driver/nvidia/params", "A: 1"); },
         "RMForceStaticBar1=1"},
        {[](const MachineTree& tree) {
             tree.write("sys/module/nvme_core/parameters/multipath", "Y");
         },
         "multipath=N"},
    };
    const auto check = [](const auto& changes, bool with_nvidia_fs, bool with_p2p) {
        for (const auto& [change, words] : changes) {
            const MachineTree tree;
            tree.common();
            tree.disk(kDisk, "nvme0n1");
            if (with_p2p) {
                tree.p2p();
            }
            if (with_nvidia_fs) {
                tree.nvidia_fs();
            }
            EXPECT_NE(look(tree).way, CuFileWay::kNone) << words;
            change(tree);
            const CuFileConditions found = look(tree);
            EXPECT_EQ(found.way, CuFileWay::kNone) << words;
            EXPECT_THAT(found.reasons, Contains(HasSubstr(words)));
        }
    };
    check(common, true, true);
    check(nvidia_fs, true, false);
    check(p2p, false, true);
}

TEST(CuFileConditionsTest, TheGpuTheDriverAndTheFileSystemCount) {
    const MachineTree tree;
    tree.common();
    tree.p2p();
    tree.disk(kDisk, "nvme0n1");
    EXPECT_THAT(look(tree, "btrfs").reasons, Contains(HasSubstr("is btrfs; ext4 or xfs")));
    Gpu old;
    old.compute_major = 7;
    old.compute_minor = 5;
    EXPECT_THAT(cufile_conditions(old, kDriver, std::nullopt, tree.folders()).reasons,
                Contains(HasSubstr("capability 7.5; 8.0")));
    EXPECT_THAT(cufile_conditions(hopper(), 12060, std::nullopt, tree.folders()).reasons,
                Contains(HasSubstr("CUDA 12.6; 12.8")));
}

// Partitions are their disk's, and a RAID-0 of NVMe drives is for nvidia-fs alone.
TEST(CuFileConditionsTest, PartitionsAndRaidsAreLookedThrough) {
    const MachineTree tree;
    tree.common();
    tree.nvidia_fs();
    tree.disk({259, 0}, "nvme0n1");
    tree.disk({259, 9}, "nvme1n1");
    tree.write("sys/devices/nvme0n1/nvme0n1p1/partition", "1");
    tree.name_disk(kDisk, "sys/devices/nvme0n1/nvme0n1p1");
    EXPECT_EQ(look(tree).way, CuFileWay::kNvidiaFs);

    tree.write("sys/devices/md0/md/level", "raid0");
    tree.name_disk(kDisk, "sys/devices/md0");
    EXPECT_THAT(look(tree).reasons, Contains(HasSubstr("members of md0 are not known")));
    std::filesystem::create_directories(tree / "sys/devices/md0/slaves");
    for (const char* member : {"nvme0n1/nvme0n1p1", "nvme1n1"}) {
        const std::filesystem::path folder = tree / (std::string("sys/devices/") + member);
        std::filesystem::create_symlink(
            folder, tree / ("sys/devices/md0/slaves/" + folder.filename().string()));
    }
    EXPECT_EQ(look(tree).way, CuFileWay::kNvidiaFs);
    tree.write("sys/devices/md0/md/level", "raid5");
    EXPECT_THAT(look(tree).reasons, Contains(HasSubstr("md0 is raid5")));
    tree.write("sys/devices/md0/md/level", "raid0");
    tree.remove("dev/nvidia-fs0");
    tree.remove("proc/driver/nvidia-fs");
    tree.common();
    tree.p2p();
    EXPECT_THAT(look(tree).reasons, Contains(HasSubstr("PCI P2PDMA: md0 is a RAID")));
}

TEST(CuFileConditionsTest, WhatSpeaksAgainstBothIsSaidOnce) {
    const MachineTree tree;
    tree.common();
    tree.disk(kDisk, "vda");
    std::size_t times = 0;
    for (const std::string& reason : look(tree).reasons) {
        times += reason.find("vda") != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(times, 1U);
}

TEST(CuFileConditionsTest, ThisMachineHasAnAnswerForAPath) {
    const support::TempFolder folder;
    const CuFileReport report = cufile_conditions(Gpu{}, folder.path());
    EXPECT_EQ(report.usable, report.reasons.empty());
    EXPECT_EQ(report.usable, !report.way.empty());
    EXPECT_THROW(static_cast<void>(cufile_conditions(Gpu{}, folder / "nothing")), Error);
}

}  // namespace
}  // namespace penstock::device
