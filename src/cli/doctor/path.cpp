// SPDX-License-Identifier: Apache-2.0
#include "base/text/units.hpp"
#include "base/unique_fd.hpp"
#include "cli/doctor/checks.hpp"
#include "cli/doctor/gpu_way.hpp"
#include "cli/scratch.hpp"
#include "os/machine/block_device.hpp"
#include "os/machine/limits.hpp"
#include "os/machine/sysfs.hpp"
#include "report/message.hpp"

#include <penstock/gpu.hpp>
#include <penstock/penstock.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

namespace penstock::cli {

namespace {

constexpr std::uint64_t kProbeBytes = 1 << 20;
constexpr std::uint64_t kSpaceEnough = std::uint64_t{1} << 30;
constexpr std::uint32_t kRequestKibEnough = 512;
constexpr std::uint32_t kQueueEnough = 64;

// A descriptor for queries about PATH: PATH itself, or an unnamed file in it.
struct Probe {
    base::UniqueFd nameless;  // keeps a file in a folder alive
    File file;
    bool writable = false;
    std::string how;
};

base::UniqueFd nameless_file(const std::string& folder) {
    base::UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!fd && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        // NFS and FUSE have no unnamed files: uses a named one, removed at once.
        const std::string path = fmt::format("{}/penstock-doctor-{}.tmp", folder, ::getpid());
        fd.reset(::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
        if (fd) {
            ::unlink(path.c_str());
        }
    }
    return fd;
}

Finding unusable(const std::string& path, const std::string& what, const std::string& evidence,
                 const std::string& cure) {
    return {"path", Severity::kProblem, path + ": " + what, evidence, cure};
}

std::optional<Probe> open_folder(const std::string& path, Findings& findings) {
    Probe probe;
    probe.nameless = nameless_file(path);
    if (!probe.nameless) {
        const int code = errno;
        const std::string evidence =
            fmt::format("open({}, O_TMPFILE) = {}", path, std::strerror(code));
        if (code == EACCES || code == EROFS || code == EPERM) {
            findings.push_back({"path", Severity::kBetter,
                                path + " may not be written by this user, so direct I/O cannot be "
                                       "tried in it",
                                evidence,
                                fmt::format("penstock doctor {}{}<a file in it>", path,
                                            path.ends_with('/') ? "" : "/")});
        } else {
            findings.push_back(unusable(path, "no file can be made in it", evidence, ""));
        }
        return std::nullopt;
    }
    probe.file =
        File(fmt::format("/proc/self/fd/{}", probe.nameless.get()), {.access = Access::kReadWrite});
    probe.writable = true;
    probe.how = "a file without a name in it";
    return probe;
}

std::optional<Probe> open_probe(const std::string& path, Findings& findings) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
        const int code = errno;
        findings.push_back(unusable(path, std::strerror(code),
                                    fmt::format("stat({}) = {}", path, std::strerror(code)),
                                    "name a folder, a file or a block device that is there"));
        return std::nullopt;
    }
    try {
        if (S_ISDIR(status.st_mode)) {
            return open_folder(path, findings);
        }
        Probe probe;
        probe.file = File(path);
        probe.how = "the file itself, opened for reading";
        return probe;
    } catch (const Error& error) {
        findings.push_back(
            unusable(path, "it cannot be opened: " + report::message_of(error), "open()", ""));
        return std::nullopt;
    }
}

void direct_io(const FileInfo& info, const std::string& how, Findings& findings) {
    Finding finding{"direct I/O", Severity::kOk, "", fmt::format("{} ({})", info.reason, how), ""};
    if (info.direct) {
        finding.what = info.file_system + ": yes";
    } else {
        finding.severity = Severity::kBetter;
        finding.what = info.file_system +
                       ": no; every byte goes through the page cache, which costs "
                       "a copy and memory";
        finding.cure = "put the files on ext4 or XFS on a local disk";
    }
    if (info.file_system == "btrfs") {
        finding.severity = Severity::kBetter;
        finding.what += "; but files with checksums are cached by btrfs itself";
        finding.cure = "chattr +C <an empty folder>: files made in it have no checksums";
    }
    findings.push_back(finding);
    if (!info.direct) {
        return;
    }
    Finding alignment{"alignment", Severity::kOk,
                      fmt::format("memory {} B, reads {} B, writes {} B", info.memory_align,
                                  info.read_align, info.write_align),
                      info.reason, ""};
    if (info.memory_align > 64) {
        alignment.severity = Severity::kBetter;
        alignment.what += "; tensors that lie elsewhere go through aligned memory (one copy)";
        alignment.cure = "penstock.empty(shape, dtype) gives aligned tensors";
    }
    findings.push_back(alignment);
}

Finding space(const std::string& path) {
    const Space room = FileSystem::any().space(path);
    const double share = room.total_bytes > 0 ? 100.0 * static_cast<double>(room.free_bytes) /
                                                    static_cast<double>(room.total_bytes)
                                              : 0;
    Finding finding{
        "free space", Severity::kOk,
        fmt::format("{} of {} ({:.0f} %)", base::format_bytes(room.free_bytes),
                    base::format_bytes(room.total_bytes), share),
        fmt::format("statfs({}): {} of {} bytes free", path, room.free_bytes, room.total_bytes),
        ""};
    if (room.free_bytes == 0) {
        finding.severity = Severity::kProblem;
        finding.what += ": nothing can be written";
    } else if (room.free_bytes < kSpaceEnough || share < 5) {
        finding.severity = Severity::kBetter;
        finding.what += ": little room; nearly full file systems and drives write slowly";
    }
    if (finding.severity != Severity::kOk) {
        finding.cure =
            fmt::format("du -xh --max-depth=1 {} | sort -h   shows what takes the room", path);
    }
    return finding;
}

Finding scheduler(const os::BlockDevice& disk) {
    const std::string file = fmt::format("/sys/block/{}/queue/scheduler", disk.name);
    Finding finding{"scheduler", Severity::kOk, disk.scheduler, file + " = " + disk.scheduler, ""};
    if (disk.scheduler.empty()) {
        finding.what = "none here";
    } else if (disk.scheduler != "none" && !disk.rotational) {
        finding.severity = Severity::kBetter;
        finding.what += ": it reorders and locks, which a disk without moving parts does not need";
        finding.cure = fmt::format("echo none | sudo tee {}", file);
    }
    return finding;
}

Finding queue(const os::BlockDevice& disk) {
    const std::string folder = fmt::format("/sys/block/{}/queue", disk.name);
    Finding finding{
        "queue", Severity::kOk,
        fmt::format("{} requests, up to {} KiB each", disk.queue_requests, disk.max_request_kib),
        fmt::format("{0}/nr_requests = {1}, {0}/max_sectors_kb = {2}", folder, disk.queue_requests,
                    disk.max_request_kib),
        ""};
    if (disk.queue_requests > 0 && disk.queue_requests < kQueueEnough) {
        finding.severity = Severity::kBetter;
        finding.what += ": random reads want a longer queue";
        finding.cure = fmt::format("echo 256 | sudo tee {}/nr_requests", folder);
    }
    const auto most = os::read_number(folder + "/max_hw_sectors_kb").value_or(0);
    if (disk.max_request_kib > 0 && disk.max_request_kib < kRequestKibEnough &&
        most > disk.max_request_kib) {
        finding.severity = Severity::kBetter;
        finding.what += fmt::format(": large requests are cut (the disk takes {} KiB)", most);
        finding.cure = fmt::format("echo {} | sudo tee {}/max_sectors_kb", most, folder);
    }
    return finding;
}

void disk_checks(const FileInfo& info, Findings& findings) {
    const DeviceId id = info.device;
    const std::string sys = os::sysfs_folder(id);
    const auto disk = os::block_device(id);
    if (!disk) {
        findings.push_back({"disk", Severity::kOk,
                            info.file_system + " is on no block device of its own",
                            sys + " is not there", ""});
        return;
    }
    Finding finding{"disk", Severity::kOk, disk->name, sys, ""};
    if (!disk->model.empty()) {
        finding.what += " (" + disk->model + ")";
    }
    finding.what += fmt::format(", blocks of {} B", disk->logical_block_bytes);
    if (disk->numa_node >= 0) {
        finding.what += fmt::format(", memory node {}", disk->numa_node);
    }
    if (disk->rotational) {
        finding.severity = Severity::kBetter;
        finding.what += ": it says that it rotates; seeks bound random access to some 100 a second";
        finding.evidence = fmt::format("/sys/block/{}/queue/rotational = 1", disk->name);
        finding.cure = fmt::format(
            "where that is wrong (virtual disks): echo 0 | sudo tee /sys/block/{}/queue/rotational",
            disk->name);
    }
    findings.push_back(finding);
    findings.push_back(scheduler(*disk));
    findings.push_back(queue(*disk));
}

// The way to each GPU; nothing on a machine without one.
void gpu_ways(const std::string& path, const FileInfo& info, const std::vector<TunedGpuPath>& tuned,
              Findings& findings) {
    for (const Gpu& gpu : gpus().gpus) {
        GpuWayQuestion question;
        question.gpu = gpu;
        question.disk = info.device;
        for (const TunedGpuPath& pair : tuned) {
            if (pair.disk == info.device && pair.gpu == gpu.pci) {
                question.tuned = pair.path;
            }
        }
        try {
            CuFileReport report = cufile_conditions(gpu, path);
            question.straight = report.usable;
            question.way = std::move(report.way);
            question.reasons = std::move(report.reasons);
        } catch (const Error& error) {
            question.reasons = {report::message_of(error)};
        }
        check_gpu_way(question, findings);
    }
}

void io_limits(const FileInfo& info, Findings& findings) {
    bool any = false;
    const DeviceId whole = os::whole_disk(info.device);
    for (const os::IoLimit& limit : os::io_limits()) {
        if (limit.device != whole) {
            continue;
        }
        any = true;
        std::string what = "a control group holds this disk to";
        const auto add = [&](std::uint64_t value, const std::string& text) {
            if (value != 0) {
                what += " " + text + ",";
            }
        };
        const auto rate = [](std::uint64_t value) {
            return base::format_rate(static_cast<double>(value));
        };
        add(limit.read_bytes_per_s, rate(limit.read_bytes_per_s) + " read");
        add(limit.write_bytes_per_s, rate(limit.write_bytes_per_s) + " written");
        add(limit.reads_per_s, fmt::format("{} reads a second", limit.reads_per_s));
        add(limit.writes_per_s, fmt::format("{} writes a second", limit.writes_per_s));
        what.pop_back();
        findings.push_back({"I/O limit", Severity::kBetter, what, limit.source,
                            "the administrator of the container or service can raise it (docker: "
                            "--device-read-bps and its kin; systemd: IOReadBandwidthMax=)"});
    }
    if (!any) {
        findings.push_back({"I/O limit", Severity::kOk, "none seen on this disk",
                            "the control groups of this process", ""});
    }
}

// Writes and reads once through the backend, not through the inline path of small blocking calls.
Finding round_trip(const Probe& probe) {
    try {
        MemoryPool pool;
        const Buffer out = pool.take(kProbeBytes);
        const Buffer in = pool.take(kProbeBytes);
        probe::fill_random(out.bytes(), 1);
        Engine engine;
        engine.write_async(probe.file, out.bytes()).wait();
        engine.read_async(probe.file, in.bytes()).wait();
        const bool same = std::memcmp(out.data(), in.data(), kProbeBytes) == 0;
        return {"round trip", same ? Severity::kOk : Severity::kProblem,
                same
                    ? "1 MiB written and read back, equal bit for bit"
                    : "1 MiB written and read back is NOT what was written: do not trust this path",
                "Engine::write_async, read_async through " + engine.describe().backend, ""};
    } catch (const Error& error) {
        return {"round trip", Severity::kProblem, report::message_of(error),
                "Engine::write_async, read_async", ""};
    }
}

}  // namespace

void check_path(const std::string& path, const std::vector<TunedGpuPath>& tuned,
                Findings& findings) {
    const auto probe = open_probe(path, findings);
    struct stat status {};
    if (!probe && ::stat(path.c_str(), &status) != 0) {
        return;
    }
    FileInfo info;
    if (probe) {
        info = probe->file.info();
        direct_io(info, probe->how, findings);
        findings.push_back(
            {"page cache", Severity::kOk, info.page_cache, "File::info(), of " + probe->how, ""});
    } else {  // a folder that is not writable
        info.file_system = "this folder";
        info.device = {gnu_dev_major(status.st_dev), gnu_dev_minor(status.st_dev)};
    }
    disk_checks(info, findings);
    gpu_ways(path, info, tuned, findings);
    io_limits(info, findings);
    if (!info.is_block_device) {
        try {
            findings.push_back(space(path));
        } catch (const Error& error) {
            findings.push_back(
                {"free space", Severity::kBetter, report::message_of(error), "statfs()", ""});
        }
    }
    if (probe && probe->writable) {
        findings.push_back(round_trip(*probe));
    }
}

}  // namespace penstock::cli
