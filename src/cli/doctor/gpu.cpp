// SPDX-License-Identifier: Apache-2.0
#include "base/text/units.hpp"
#include "cli/doctor/checks.hpp"
#include "os/machine/sysfs.hpp"

#include <penstock/gpu.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <system_error>

namespace penstock::cli {

namespace {

// Made by the kernel's part of the driver, so a GPU is there.
constexpr const char* kControlDevice = "/dev/nvidiactl";

// "0000:3B:00.0" of the driver is "0000:3b:00.0" in sysfs.
std::string sysfs_of(const Gpu& gpu) {
    std::string address = gpu.pci;
    std::transform(address.begin(), address.end(), address.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    return "/sys/bus/pci/devices/" + address;
}

// The width alone: an idle GPU lowers the speed of its link.
void check_link(const Gpu& gpu, Finding& finding) {
    const std::string folder = sysfs_of(gpu);
    const auto now = os::read_number(folder + "/current_link_width");
    const auto most = os::read_number(folder + "/max_link_width");
    if (!now || !most || *now <= 0) {
        return;
    }
    finding.evidence += fmt::format(", {}/current_link_width = {} of {}", folder, *now, *most);
    if (*now < *most) {
        finding.severity = Severity::kBetter;
        finding.what += fmt::format(
            "; its PCIe link has {} of {} lanes, and copies are as much "
            "slower: look at the slot, the riser and the BIOS",
            *now, *most);
    }
}

Finding one(const Gpu& gpu) {
    Finding finding{fmt::format("gpu {}", gpu.number), Severity::kOk,
                    fmt::format("{}, {}, compute capability {}.{}; bytes go through pinned memory "
                                "of the host",
                                gpu.name, base::format_bytes(gpu.memory_bytes), gpu.compute_major,
                                gpu.compute_minor),
                    "PCI " + gpu.pci, ""};
    if (gpu.numa_node >= 0) {
        finding.evidence += fmt::format(", memory node {}", gpu.numa_node);
    }
    check_link(gpu, finding);
    return finding;
}

}  // namespace

void check_gpus(Findings& findings) {
    const GpuReport report = gpus();
    if (!report.available) {
        std::error_code ignored;
        const bool is_there = std::filesystem::exists(kControlDevice, ignored);
        findings.push_back({"gpu", is_there ? Severity::kBetter : Severity::kOk,
                            (is_there ? "not usable: " : "not used: ") + report.reason,
                            fmt::format("{} {}", kControlDevice, is_there ? "exists" : "is absent"),
                            ""});
        return;
    }
    Finding driver{"gpu", Severity::kOk,
                   fmt::format("{} by a driver of CUDA {}.{}", report.gpus.size(),
                               report.driver_version / 1000, report.driver_version % 1000 / 10),
                   report.library, ""};
    for (const std::string& missing : report.missing_features) {
        driver.severity = Severity::kBetter;
        driver.what += "; it lacks " + missing + "; a newer driver of NVIDIA's has it";
    }
    findings.push_back(driver);
    for (const Gpu& gpu : report.gpus) {
        findings.push_back(one(gpu));
    }
}

}  // namespace penstock::cli
