// SPDX-License-Identifier: Apache-2.0
// The folders of /proc, /sys, /run and /dev of a machine that is not this one: what
// cufile_conditions() looks at, laid out piece by piece.
#pragma once

#include "device/cufile/cufile_conditions.hpp"
#include "support/temp_folder.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace penstock::device {

class MachineTree {
public:
    [[nodiscard]] MachineFolders folders() const {
        return {root_ / "proc", root_ / "sys", root_ / "run", root_ / "dev"};
    }
    void write(const std::string& path, const std::string& text) const {
        const std::filesystem::path file = root_ / path;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << text << "\n";
    }
    void remove(const std::string& path) const { std::filesystem::remove_all(root_ / path); }

    /// Files that both ways want.
    void common() const {
        write("proc/modules", "ext4 1 0 - Live 0x0");
        write("run/udev/data/b259:0", "I:1");
    }
    void nvidia_fs() const {
        write("proc/modules", "ext4 1 0 - Live 0x0\nnvidia_fs 1 0 - Live 0x0");
        write("proc/driver/nvidia-fs/version", "version: 2.26.6");
        write("dev/nvidia-fs0", "");
    }
    void p2p() const {
        write("proc/sys/kernel/osrelease", "6.8.0-45-generic");
        write("proc/driver/nvidia/version",
              "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10");
        write("proc/driver/nvidia/params",
              "RegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"");
        write("sys/module/nvme_core/parameters/multipath", "N");
    }
    /// A disk, and what names it.
    void disk(DeviceId id, const std::string& name, const std::string& transport = "pcie") const {
        write("sys/devices/" + name + "/device/transport", transport);
        name_disk(id, "sys/devices/" + name);
    }
    void name_disk(DeviceId id, const std::string& folder) const {
        const std::filesystem::path link =
            root_ / fmt::format("sys/dev/block/{}:{}", id.major, id.minor);
        std::filesystem::create_directories(link.parent_path());
        std::filesystem::create_directories(root_ / folder);
        std::filesystem::remove(link);
        std::filesystem::create_symlink(root_ / folder, link);
    }
    [[nodiscard]] std::string operator/(const std::string& path) const { return root_ / path; }

private:
    support::TempFolder root_;
};

}  // namespace penstock::device
