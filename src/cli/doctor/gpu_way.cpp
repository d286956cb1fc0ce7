// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/gpu_way.hpp"

#include "os/machine/sysfs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <system_error>

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

// "0000:3b:00.0"
bool is_pci_function(const std::string& name) {
    constexpr const char* kForm = "hhhh:hh:hh.h";
    return name.size() == 12 && std::equal(name.begin(), name.end(), kForm, [](char c, char form) {
               return form == 'h' ? std::isxdigit(static_cast<unsigned char>(c)) != 0 : c == form;
           });
}

// The folder of the PCI function that a device hangs on, or empty.
fs::path pci_function_of(fs::path folder) {
    while (folder.has_relative_path() && !is_pci_function(folder.filename().string())) {
        folder = folder.parent_path();
    }
    return folder.has_relative_path() ? folder : fs::path();
}

// The whole disk in sysfs, or empty.
fs::path disk_in(const GpuWayQuestion& question) {
    std::error_code code;
    const fs::path folder = fs::canonical(
        fmt::format("{}/dev/block/{}:{}", question.sys, question.disk.major, question.disk.minor),
        code);
    if (code) {
        return {};
    }
    return fs::exists(folder / "partition", code) ? folder.parent_path() : folder;
}

fs::path gpu_in(const GpuWayQuestion& question) {
    std::string address = question.gpu.pci;
    std::transform(address.begin(), address.end(), address.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    std::error_code code;
    const fs::path folder = fs::canonical(question.sys + "/bus/pci/devices/" + address, code);
    return code || address.empty() ? fs::path() : folder;
}

// The members of a RAID, or the disk itself.
std::vector<fs::path> drives_of(const fs::path& disk) {
    std::vector<fs::path> drives;
    std::error_code code;
    for (const auto& member : fs::directory_iterator(disk / "slaves", code)) {
        fs::path folder = fs::canonical(member.path(), code);
        if (!code) {
            drives.push_back(fs::exists(folder / "partition", code) ? folder.parent_path()
                                                                    : folder);
        }
    }
    std::sort(drives.begin(), drives.end());
    return drives.empty() ? std::vector<fs::path>{disk} : drives;
}

// In words, how far apart two functions are on the PCI bus.
std::string pci_distance(const fs::path& one, const fs::path& other) {
    fs::path common;
    for (auto a = one.begin(), b = other.begin(); a != one.end() && b != other.end() && *a == *b;
         ++a, ++b) {
        common /= *a;
    }
    if (is_pci_function(common.filename().string())) {
        return "behind one PCIe switch or port";
    }
    return common.filename().string().starts_with("pci") ? "at one PCIe root"
                                                         : "at different PCIe roots";
}

std::optional<std::int64_t> node_of(const fs::path& function) {
    const auto node = os::read_number((function / "numa_node").string());
    return node && *node >= 0 ? node : std::nullopt;
}

void check_way(const GpuWayQuestion& question, const fs::path& disk,
               const std::vector<fs::path>& drives, const fs::path& gpu, Findings& findings) {
    const std::string name = disk.empty() ? "this file system" : disk.filename().string();
    Finding finding{fmt::format("gpu {} way", question.gpu.number), Severity::kOk, "", "", ""};
    if (question.straight && question.tuned == GpuPath::kBounce) {
        finding.what = fmt::format(
            "{} and GPU {}: through pinned memory of the host, which was faster than cuFile over "
            "{} (penstock tune)",
            name, question.gpu.number, question.way);
    } else if (question.straight) {
        finding.what =
            fmt::format("{} and GPU {}: straight, by cuFile over {}{}", name, question.gpu.number,
                        question.way, question.tuned ? ", which was faster (penstock tune)" : "");
    } else {
        finding.what = fmt::format("{} and GPU {}: through pinned memory of the host", name,
                                   question.gpu.number);
        const bool nvme = !disk.empty() && std::all_of(drives.begin(), drives.end(), [](auto& one) {
            return one.filename().string().starts_with("nvme");
        });
        finding.severity = nvme ? Severity::kBetter : Severity::kOk;
        if (!nvme) {
            finding.what += "; cuFile wants a local NVMe drive";
        } else if (!question.reasons.empty()) {
            finding.what +=
                fmt::format("; not straight (cuFile), for {}", fmt::join(question.reasons, "; "));
            finding.cure = question.reasons.front();
        }
    }
    const fs::path function = drives.empty() ? fs::path() : pci_function_of(drives.front());
    finding.evidence =
        question.reasons.empty()
            ? fmt::format("cuFile's conditions on GPU {} and {}", question.gpu.number, name)
            : question.reasons.front();
    if (!function.empty() && !gpu.empty()) {
        finding.evidence += fmt::format("; PCI {} and {}, {}", function.filename().string(),
                                        gpu.filename().string(), pci_distance(function, gpu));
    }
    findings.push_back(finding);
}

void check_nodes(const GpuWayQuestion& question, const fs::path& drive, const fs::path& gpu,
                 Findings& findings) {
    const fs::path function = pci_function_of(drive);
    const auto disk_node = node_of(function);
    const auto gpu_node = node_of(gpu);
    if (!disk_node || !gpu_node) {
        return;
    }
    Finding finding{fmt::format("gpu {} node", question.gpu.number), Severity::kOk,
                    fmt::format("{} and GPU {} are both at memory node {}",
                                drive.filename().string(), question.gpu.number, *gpu_node),
                    fmt::format("{}/numa_node = {}, {}/numa_node = {}", function.string(),
                                *disk_node, gpu.string(), *gpu_node),
                    ""};
    if (*disk_node != *gpu_node) {
        finding.severity = Severity::kBetter;
        finding.what = fmt::format(
            "{} is at memory node {} and GPU {} at node {}: each byte crosses the link between "
            "the processors; put the files on a drive of node {}, or use a GPU of node {}",
            drive.filename().string(), *disk_node, question.gpu.number, *gpu_node, *gpu_node,
            *disk_node);
        finding.cure = fmt::format("numactl --cpunodebind={0} --membind={0} <program>", *gpu_node);
    }
    findings.push_back(finding);
}

void check_iommu(const GpuWayQuestion& question, const fs::path& gpu, Findings& findings) {
    const std::string file = (gpu / "iommu_group" / "type").string();
    const auto type = os::read_text(file);
    if (!type) {
        return;
    }
    Finding finding{fmt::format("gpu {} iommu", question.gpu.number), Severity::kOk,
                    "passes addresses through", file + " = " + *type, ""};
    if (type->starts_with("DMA")) {
        finding.severity = Severity::kBetter;
        finding.what =
            "the IOMMU translates each address of the GPU's copies, and keeps disk and GPU from "
            "reaching one another straight";
        finding.cure = "boot with iommu=pt on the kernel's command line";
    }
    findings.push_back(finding);
}

// "8.0 GT/s PCIe" -> 8.0
double transfers_of(const std::string& text) {
    try {
        return std::stod(text);
    } catch (const std::exception&) {
        return 0;
    }
}

void check_disk_link(const fs::path& drive, Findings& findings) {
    const fs::path function = pci_function_of(drive);
    const auto width = os::read_number((function / "current_link_width").string());
    const auto most = os::read_number((function / "max_link_width").string());
    const auto speed = os::read_text((function / "current_link_speed").string());
    const auto fastest = os::read_text((function / "max_link_speed").string());
    const std::string topic = "link " + drive.filename().string();
    const bool said = std::any_of(findings.begin(), findings.end(),
                                  [&](const Finding& finding) { return finding.topic == topic; });
    if (said || !width || !most || *width <= 0 || !speed || !fastest) {
        return;
    }
    Finding finding{topic, Severity::kOk, fmt::format("{} lanes at {}", *width, *speed),
                    fmt::format("{}/current_link_width = {} of {}, current_link_speed = {} of {}",
                                function.string(), *width, *most, *speed, *fastest),
                    ""};
    if (*width < *most || transfers_of(*speed) < transfers_of(*fastest)) {
        finding.severity = Severity::kBetter;
        finding.what +=
            fmt::format("; the drive can have {} at {}: look at the slot, the riser and the BIOS",
                        *most, *fastest);
    }
    findings.push_back(finding);
}

}  // namespace

void check_gpu_way(const GpuWayQuestion& question, Findings& findings) {
    const fs::path disk = disk_in(question);
    const fs::path gpu = gpu_in(question);
    const std::vector<fs::path> drives = disk.empty() ? std::vector<fs::path>() : drives_of(disk);
    check_way(question, disk, drives, gpu, findings);
    for (const fs::path& drive : drives) {
        if (!gpu.empty()) {
            check_nodes(question, drive, gpu, findings);
        }
        check_disk_link(drive, findings);
    }
    if (!gpu.empty()) {
        check_iommu(question, gpu, findings);
    }
}

}  // namespace penstock::cli
