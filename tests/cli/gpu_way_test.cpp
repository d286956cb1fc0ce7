// SPDX-License-Identifier: Apache-2.0
// The way between a disk and a GPU, on trees of sysfs that lay a machine out.
#include "cli/doctor/gpu_way.hpp"

#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace penstock::cli {
namespace {

using testing::HasSubstr;

// A machine with an NVMe drive nvme0n1 (259:0, its partition 259:1), a GPU at 0000:3c:00.0 and a
// virtual disk vda (254:0).
class GpuWayTest : public testing::Test {
protected:
    void SetUp() override { lay_out("0000:3a:00.0/0000:3b:00.0", "0000:3a:00.0/0000:3c:00.0"); }

    void lay_out(const std::string& drive, const std::string& gpu) {
        std::filesystem::remove_all(sys());
        drive_ = sys() + "/devices/" + root_of(drive) + drive;
        gpu_ = sys() + "/devices/" + root_of(gpu) + gpu;
        const std::string disk = drive_ + "/nvme/nvme0/nvme0n1";
        put(disk + "/nvme0n1p1/partition", "1");
        put(drive_ + "/numa_node", "0");
        put(gpu_ + "/numa_node", "0");
        put(drive_ + "/current_link_width", "4");
        put(drive_ + "/max_link_width", "4");
        put(drive_ + "/current_link_speed", "16.0 GT/s PCIe");
        put(drive_ + "/max_link_speed", "16.0 GT/s PCIe");
        put(sys() + "/devices/virtio/vda/size", "1");
        put(sys() + "/kernel/iommu_groups/7/type", "identity");
        link(disk, sys() + "/dev/block/259:0");
        link(disk + "/nvme0n1p1", sys() + "/dev/block/259:1");
        link(sys() + "/devices/virtio/vda", sys() + "/dev/block/254:0");
        link(gpu_, sys() + "/bus/pci/devices/0000:3c:00.0");
        link(sys() + "/kernel/iommu_groups/7", gpu_ + "/iommu_group");
        question_ = {};
        question_.sys = sys();
        question_.gpu.pci = "0000:3C:00.0";  // as the driver writes it
        question_.disk = {259, 1};
        question_.reasons = {"the module is not loaded: modprobe nvidia-fs"};
    }

    static void put(const std::string& path, const std::string& text) {
        std::filesystem::create_directories(std::filesystem::path(path).parent_path());
        std::ofstream(path) << text << "\n";
    }
    static void link(const std::string& to, const std::string& name) {
        std::filesystem::create_directories(std::filesystem::path(name).parent_path());
        std::filesystem::create_symlink(to, name);
    }
    [[nodiscard]] std::string sys() const { return folder_.path() + "/sys"; }
    [[nodiscard]] Findings asked() const {
        Findings findings;
        check_gpu_way(question_, findings);
        for (const Finding& finding : findings) {
            EXPECT_FALSE(finding.what.empty() || finding.evidence.empty()) << finding.topic;
        }
        return findings;
    }
    static Finding of(const Findings& findings, const std::string& topic) {
        const auto found = std::find_if(findings.begin(), findings.end(),
                                        [&](const Finding& one) { return one.topic == topic; });
        return found == findings.end() ? Finding{} : *found;
    }
    [[nodiscard]] Finding found(const std::string& topic) const { return of(asked(), topic); }

    GpuWayQuestion question_;
    std::string drive_;
    std::string gpu_;

private:
    static std::string root_of(const std::string& function) {
        return "pci" + function.substr(0, 7) + "/";
    }
    support::TempFolder folder_;
};

TEST_F(GpuWayTest, AWayThroughTheHostSaysWhyAndWhatToDo) {
    const Finding way = found("gpu 0 way");
    EXPECT_EQ(way.severity, Severity::kBetter);
    EXPECT_THAT(way.what, HasSubstr("nvme0n1 and GPU 0: through pinned memory"));
    EXPECT_THAT(way.what, HasSubstr("modprobe nvidia-fs"));
    EXPECT_THAT(way.cure, HasSubstr("modprobe nvidia-fs"));
    EXPECT_THAT(way.evidence, HasSubstr("behind one PCIe switch"));
    for (const Finding& finding : asked()) {
        EXPECT_TRUE(finding.topic == "gpu 0 way" || finding.severity == Severity::kOk)
            << finding.topic << ": " << finding.what;
    }
}

TEST_F(GpuWayTest, AStraightWayIsNamed) {
    question_.straight = true;
    question_.way = "PCI P2PDMA";
    question_.reasons.clear();
    const Finding way = found("gpu 0 way");
    EXPECT_EQ(way.severity, Severity::kOk);
    EXPECT_THAT(way.what, HasSubstr("straight, by cuFile over PCI P2PDMA"));
    EXPECT_TRUE(way.cure.empty());
    question_.tuned = GpuPath::kCuFile;
    EXPECT_THAT(found("gpu 0 way").what, HasSubstr("which was faster (penstock tune)"));
    question_.tuned = GpuPath::kBounce;
    EXPECT_THAT(found("gpu 0 way").what,
                HasSubstr("through pinned memory of the host, which was faster than cuFile"));
}

TEST_F(GpuWayTest, ADiskThatCuFileNeverTakesIsNoFaultOfTheMachine) {
    question_.disk = {254, 0};
    EXPECT_EQ(found("gpu 0 way").severity, Severity::kOk);
    EXPECT_THAT(found("gpu 0 way").what, HasSubstr("NVMe"));
    question_.disk = {0, 31};  // tmpfs
    EXPECT_THAT(found("gpu 0 way").what, HasSubstr("this file system and GPU 0"));
    EXPECT_EQ(asked().size(), 2U);  // and the IOMMU of the GPU
}

TEST_F(GpuWayTest, NodesLinksIommuAndRootsThatAreWorseThanTheyCouldBe) {
    put(gpu_ + "/numa_node", "1");
    put(drive_ + "/current_link_speed", "8.0 GT/s PCIe");
    put(sys() + "/kernel/iommu_groups/7/type", "DMA-FQ");
    const Findings findings = asked();
    EXPECT_EQ(of(findings, "gpu 0 node").severity, Severity::kBetter);
    EXPECT_EQ(of(findings, "gpu 0 node").cure, "numactl --cpunodebind=1 --membind=1 <program>");
    EXPECT_EQ(of(findings, "link nvme0n1").severity, Severity::kBetter);
    EXPECT_THAT(of(findings, "link nvme0n1").what, HasSubstr("4 at 16.0 GT/s"));
    EXPECT_EQ(of(findings, "gpu 0 iommu").severity, Severity::kBetter);
    EXPECT_THAT(of(findings, "gpu 0 iommu").cure, HasSubstr("iommu=pt"));
    put(drive_ + "/current_link_speed", "16.0 GT/s PCIe");
    put(drive_ + "/current_link_width", "2");
    EXPECT_EQ(found("link nvme0n1").severity, Severity::kBetter);
    lay_out("0000:3a:00.0/0000:3b:00.0", "0000:3a:02.0/0000:3c:00.0");
    EXPECT_THAT(found("gpu 0 way").evidence, HasSubstr("at one PCIe root"));
    lay_out("0000:3a:00.0/0000:3b:00.0", "0000:80:00.0/0000:3c:00.0");
    EXPECT_THAT(found("gpu 0 way").evidence, HasSubstr("at different PCIe roots"));
}

TEST_F(GpuWayTest, EachDriveOfARaidIsLookedAt) {
    const std::string raid = sys() + "/devices/virtual/block/md0";
    const std::string second = sys() + "/devices/pci0000:80/0000:81:00.0";
    put(second + "/nvme/nvme1/nvme1n1/size", "1");
    put(second + "/numa_node", "1");
    link(sys() + "/dev/block/259:1", raid + "/slaves/nvme0n1p1");
    link(second + "/nvme/nvme1/nvme1n1", raid + "/slaves/nvme1n1");
    link(raid, sys() + "/dev/block/9:0");
    question_.disk = {9, 0};
    const Findings findings = asked();
    EXPECT_THAT(of(findings, "gpu 0 way").what, HasSubstr("md0 and GPU 0"));
    EXPECT_EQ(of(findings, "gpu 0 way").severity, Severity::kBetter);
    EXPECT_EQ(std::count_if(findings.begin(), findings.end(),
                            [](const Finding& one) { return one.topic == "gpu 0 node"; }),
              2);
    EXPECT_THAT(of(findings, "link nvme0n1").what, HasSubstr("4 lanes"));
}

TEST_F(GpuWayTest, FactsThatAreNotThereAreLeftOut) {
    std::filesystem::remove_all(sys());
    const Findings findings = asked();
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_THAT(findings.front().what, HasSubstr("through pinned memory"));
}

}  // namespace
}  // namespace penstock::cli
