// SPDX-License-Identifier: Apache-2.0
#include "device/cufile/cufile_conditions.hpp"

#include "os/machine/sysfs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace penstock::device {

namespace {

namespace fs = std::filesystem;
using Reasons = std::vector<std::string>;

constexpr int kP2pDriver = 12080;    // CUDA 12.8
constexpr int kP2pComputeMajor = 8;  // A100 and later
constexpr int kP2pKernelMajor = 6;
constexpr int kP2pKernelMinor = 2;

bool is_there(const std::string& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}

bool has_line_with(const std::string& text, std::string_view start) {
    for (std::size_t at = 0; at < text.size();) {
        if (std::string_view(text).substr(at).starts_with(start)) {
            return true;
        }
        const std::size_t end = text.find('\n', at);
        at = end == std::string::npos ? text.size() : end + 1;
    }
    return false;
}

// Needed by both ways.
Reasons common_reasons(const MachineFolders& folders) {
    Reasons reasons;
    if (!os::read_text(folders.proc + "/modules")) {
        reasons.push_back(fmt::format(
            "{}/modules cannot be read, and libcufile waits for it without an end: a sandbox or "
            "a kernel without modules has none",
            folders.proc));
    }
    if (!is_there(folders.run + "/udev/data")) {
        reasons.push_back(fmt::format(
            "{0}/udev/data is not there, where libcufile looks disks up: start udev, or a "
            "container with --volume /run/udev:/run/udev:ro",
            folders.run));
    }
    return reasons;
}

Reasons nvidia_fs_reasons(const MachineFolders& folders) {
    const std::string modules = os::read_text(folders.proc + "/modules").value_or("");
    const std::string version = folders.proc + "/driver/nvidia-fs/version";
    const std::string node = folders.dev + "/nvidia-fs0";
    const bool loaded = has_line_with(modules, "nvidia_fs ");
    const bool answers = is_there(version);
    const bool reachable = is_there(node);
    if (!loaded && !answers && !reachable) {
        return {"the module is not loaded: install nvidia-gds, then modprobe nvidia-fs"};
    }
    if (!answers || !reachable) {
        return {fmt::format(
            "it is set up by half ({} is missing), and libcufile would close descriptor 0: load it "
            "again, or give the container {}/nvidia-fs*",
            answers ? node : version, folders.dev)};
    }
    return {};
}

bool is_older(std::string_view release, int major, int minor) {
    int found_major = 0;
    int found_minor = 0;
    const char* end = release.data() + release.size();
    const auto [dot, error] = std::from_chars(release.data(), end, found_major);
    if (error != std::errc() || dot == end || *dot != '.' ||
        std::from_chars(dot + 1, end, found_minor).ec != std::errc()) {
        return true;
    }
    return std::pair(found_major, found_minor) < std::pair(major, minor);
}

Reasons p2p_reasons(const Gpu& gpu, int driver_version, const MachineFolders& folders) {
    Reasons reasons;
#ifndef __x86_64__
    reasons.emplace_back("it is there on x86_64 alone");
#endif
    const std::string release =
        os::read_text(folders.proc + "/sys/kernel/osrelease").value_or("unknown");
    if (is_older(release, kP2pKernelMajor, kP2pKernelMinor)) {
        reasons.push_back(fmt::format("the kernel is {}; Linux 6.2 or later is needed", release));
    }
    if (driver_version < kP2pDriver) {
        reasons.push_back(
            fmt::format("the driver is of CUDA {}.{}; 12.8 (release 570) or later is needed",
                        driver_version / 1000, driver_version % 1000 / 10));
    }
    if (gpu.compute_major < kP2pComputeMajor) {
        reasons.push_back(fmt::format("GPU {} has compute capability {}.{}; 8.0 or later is needed",
                                      gpu.number, gpu.compute_major, gpu.compute_minor));
    }
    const std::string driver = os::read_text(folders.proc + "/driver/nvidia/version").value_or("");
    if (driver.find("Open Kernel Module") == std::string::npos) {
        reasons.emplace_back("the driver's kernel module is not NVIDIA's open one");
    }
    const std::string parameters =
        os::read_text(folders.proc + "/driver/nvidia/params").value_or("");
    if (parameters.find("RMForceStaticBar1=1") == std::string::npos) {
        reasons.emplace_back(
            "the driver was loaded without "
            "NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"");
    }
    const auto multipath = os::read_text(folders.sys + "/module/nvme_core/parameters/multipath");
    if (multipath && *multipath != "N") {
        reasons.emplace_back("nvme_core.multipath is on: boot with nvme_core.multipath=N");
    }
    return reasons;
}

// The folder of a disk in sysfs, of the whole disk for a partition; empty where sysfs has none.
fs::path disk_folder(DeviceId id, const MachineFolders& folders) {
    std::error_code error;
    fs::path folder =
        fs::canonical(fmt::format("{}/dev/block/{}:{}", folders.sys, id.major, id.minor), error);
    if (error) {
        return {};
    }
    return fs::exists(folder / "partition", error) ? folder.parent_path() : folder;
}

// "" for a namespace of a local NVMe drive, else why it is none.
std::string why_no_nvme(const fs::path& disk) {
    const std::string name = disk.filename().string();
    if (!name.starts_with("nvme")) {
        return fmt::format("the disk {} is not NVMe", name);
    }
    const auto transport = os::read_text((disk / "device" / "transport").string());
    return transport && *transport != "pcie"
               ? fmt::format("the disk {} is reached by NVMe over {}", name, *transport)
               : "";
}

// Reasons against a disk by nvidia-fs and by P2PDMA, in this order.
std::pair<Reasons, Reasons> place_reasons(const FilePlace& place, const MachineFolders& folders) {
    std::pair<Reasons, Reasons> reasons;
    const auto both = [&](const std::string& reason) {
        reasons.first.push_back(reason);
        reasons.second.push_back(reason);
    };
    if (place.file_system != "ext4" && place.file_system != "xfs") {
        both(fmt::format("the file system is {}; ext4 or xfs is expected", place.file_system));
    }
    const fs::path disk = disk_folder(place.device, folders);
    if (disk.empty()) {
        both(fmt::format("there is no disk {}:{} in {}", place.device.major, place.device.minor,
                         folders.sys));
        return reasons;
    }
    std::error_code error;
    if (const auto level = os::read_text((disk / "md" / "level").string())) {
        const std::string name = disk.filename().string();
        reasons.second.push_back(fmt::format("{} is a RAID", name));
        if (*level != "raid0") {
            reasons.first.push_back(fmt::format("{} is {}; raid0 is expected", name, *level));
        }
        std::size_t members = 0;
        for (const fs::directory_entry& member : fs::directory_iterator(disk / "slaves", error)) {
            ++members;
            fs::path folder = fs::canonical(member.path(), error);
            if (!error && fs::exists(folder / "partition", error)) {
                folder = folder.parent_path();
            }
            if (const std::string why = why_no_nvme(folder); !why.empty()) {
                reasons.first.push_back(why);
            }
        }
        if (members == 0) {
            reasons.first.push_back(fmt::format("the members of {} are not known", name));
        }
        return reasons;
    }
    if (const std::string why = why_no_nvme(disk); !why.empty()) {
        both(why);
    }
    return reasons;
}

void add(Reasons& all, const char* way, const Reasons& reasons) {
    for (const std::string& reason : reasons) {
        all.push_back(fmt::format("{}: {}", way, reason));
    }
}

}  // namespace

CuFileConditions cufile_conditions(const Gpu& gpu, int driver_version,
                                   const std::optional<FilePlace>& place,
                                   const MachineFolders& folders) {
    CuFileConditions found;
    found.reasons = common_reasons(folders);
    Reasons nvidia_fs = nvidia_fs_reasons(folders);
    Reasons p2p = p2p_reasons(gpu, driver_version, folders);
    if (place) {
        std::pair<Reasons, Reasons> more = place_reasons(*place, folders);
        nvidia_fs.insert(nvidia_fs.end(), more.first.begin(), more.first.end());
        p2p.insert(p2p.end(), more.second.begin(), more.second.end());
    }
    if (found.reasons.empty() && (nvidia_fs.empty() || p2p.empty())) {
        found.way = nvidia_fs.empty() ? CuFileWay::kNvidiaFs : CuFileWay::kP2pDma;
        return found;
    }
    if (nvidia_fs.empty() || p2p.empty()) {
        return found;
    }
    // Reasons against both are said once.
    for (const std::string& reason : nvidia_fs) {
        if (std::find(p2p.begin(), p2p.end(), reason) != p2p.end()) {
            found.reasons.push_back(reason);
            std::erase(p2p, reason);
        } else {
            add(found.reasons, "nvidia-fs", {reason});
        }
    }
    add(found.reasons, "PCI P2PDMA", p2p);
    return found;
}

const char* name_of(CuFileWay way) {
    switch (way) {
        case CuFileWay::kNvidiaFs:
            return "nvidia-fs";
        case CuFileWay::kP2pDma:
            return "PCI P2PDMA";
        case CuFileWay::kNone:
            break;
    }
    return "";
}

CuFileReport report_of(CuFileConditions&& conditions) {
    CuFileReport report;
    report.usable = conditions.way != CuFileWay::kNone;
    report.way = name_of(conditions.way);
    report.reasons = std::move(conditions.reasons);
    return report;
}

}  // namespace penstock::device
