// SPDX-License-Identifier: Apache-2.0
// Whether bytes could go straight between a disk and a GPU by cuFile: everything that can be known
// before libcufile is opened, from /proc, /sys, /run and /dev. It must be known before, for
// libcufile 1.20 spins for ever in cuFileDriverOpen() where /proc/modules is missing, closes
// descriptor 0 where nvidia-fs is set up by half, and takes no file where udev's data is missing.
//
// There are two ways: NVIDIA's kernel module nvidia-fs, and the PCI P2PDMA of Linux 6.2 and later
// with NVIDIA's open driver. cuFile's third, its compatibility mode, is a bounce through host
// memory like our own, and is never a reason to use it.
#pragma once

#include <penstock/gpu.hpp>
#include <penstock/types.hpp>

#include <optional>
#include <string>
#include <vector>

namespace penstock::device {

/// The folders that say what the machine is; a test lays out its own.
struct MachineFolders {
    std::string proc = "/proc";
    std::string sys = "/sys";
    std::string run = "/run";
    std::string dev = "/dev";
};

/// The disk and the file system that a file is on.
struct FilePlace {
    DeviceId device;
    std::string file_system;  ///< "ext4", as FileInfo has it
};

enum class CuFileWay : std::uint8_t { kNone, kNvidiaFs, kP2pDma };

struct CuFileConditions {
    CuFileWay way = CuFileWay::kNone;  ///< the first of both that nothing speaks against
    std::vector<std::string> reasons;  ///< kNone: what is missing, and what to do; each by itself
};

/// Conditions of the machine and this GPU; with a `place`, of that disk and file system too.
/// `driver_version`: GpuReport::driver_version. Reads small files only. Thread-safe.
[[nodiscard]] CuFileConditions cufile_conditions(const Gpu& gpu, int driver_version,
                                                 const std::optional<FilePlace>& place,
                                                 const MachineFolders& folders = {});

/// "nvidia-fs", "PCI P2PDMA" or "".
[[nodiscard]] const char* name_of(CuFileWay way);

/// The same for people.
[[nodiscard]] CuFileReport report_of(CuFileConditions&& conditions);

}  // namespace penstock::device
