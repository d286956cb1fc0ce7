// SPDX-License-Identifier: Apache-2.0
#include "base/text/units.hpp"
#include "cli/doctor/checks.hpp"
#include "os/io_uring_access.hpp"
#include "os/machine/limits.hpp"
#include "os/machine/sysfs.hpp"
#include "os/page_cache.hpp"
#include "os/thread.hpp"
#include "report/message.hpp"

#include <penstock/penstock.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

namespace penstock::cli {

namespace {

constexpr std::uint64_t kMemlockEnough = std::uint64_t{64} << 20;
constexpr std::uint64_t kFilesEnough = 1024;
constexpr const char* kHugePages = "/sys/kernel/mm/transparent_hugepage/enabled";

Finding kernel() {
    const std::string release = os::kernel_release();
    Finding finding{"kernel", Severity::kOk, "", "uname -r = " + release, ""};
    if (!os::release_at_least(release, 5, 15)) {
        finding.severity = Severity::kProblem;
        finding.what = release + " is older than 5.15, the oldest that Penstock supports";
        finding.cure = "install a newer kernel";
    } else if (!os::release_at_least(release, 6, 1)) {
        finding.severity = Severity::kBetter;
        finding.what = release +
                       " does not tell the alignment of direct I/O (6.1 does), so it is taken from "
                       "the block size, and more is copied than needs to be";
        finding.cure = "a kernel from 6.1 on";
    } else {
        finding.what = release;
    }
    return finding;
}

Finding io_uring() {
    const os::IoUringAccess access = os::probe_io_uring();
    if (access.allowed) {
        return {"io_uring", Severity::kOk, "allowed", "io_uring_setup() = success", ""};
    }
    return {"io_uring", Severity::kBetter,
            "refused by " + access.reason +
                "; Penstock works with Linux AIO instead, at a higher "
                "price in processor time",
            "io_uring_setup() refused: " + access.reason, access.cure};
}

Finding backend() {
    try {
        const EngineDescription description = Engine().describe();
        std::string what = description.backend;
        if (!description.detail.empty()) {
            what += ": " + description.detail;
        }
        Finding finding{"backend", Severity::kOk, what, "Engine::describe()", ""};
        if (!description.refusals.empty()) {
            finding.evidence += fmt::format(", refused: {}", fmt::join(description.refusals, "; "));
        }
        if (description.backend == "posix") {
            finding.severity = Severity::kBetter;
            finding.what +=
                ": neither io_uring nor Linux AIO is to be had, and a thread a request "
                "takes more processor time";
        }
        return finding;
    } catch (const Error& error) {
        return {"backend", Severity::kProblem,
                "the engine does not start: " + report::message_of(error), "Engine()", ""};
    }
}

Finding cachestat() {
    const std::string refusal = os::cachestat_refusal();
    if (refusal.empty()) {
        return {"cachestat", Severity::kOk, "the kernel reports which parts of a file are cached",
                "cachestat() = success", ""};
    }
    return {"cachestat", Severity::kBetter,
            "the kernel does not tell what of a file is in it, so cache='auto' tries single bytes, "
            "and finds less of it",
            refusal, "a kernel from 6.5 on, without a sandbox that forbids cachestat(2)"};
}

Finding memlock() {
    const std::uint64_t limit = os::memlock_limit();
    const std::string value = limit == os::kUnlimited ? "unlimited" : base::format_bytes(limit);
    std::string evidence = "getrlimit(RLIMIT_MEMLOCK) = " + value;
    if (limit < kMemlockEnough && os::may_lock(kMemlockEnough)) {  // CAP_IPC_LOCK: root's
        const std::string enough = base::format_bytes(kMemlockEnough);
        return {"locked memory", Severity::kOk, enough + " and more may be locked",
                fmt::format("{}, yet mlock2() of {} = success (CAP_IPC_LOCK)", evidence, enough),
                ""};
    }
    if (limit >= kMemlockEnough) {
        return {"locked memory", Severity::kOk, value + " may be locked", evidence, ""};
    }
    return {
        "locked memory", Severity::kBetter,
        value + " may be locked: buffers that ask to be locked will not be, and work unlocked",
        evidence,
        "ulimit -l unlimited   (for good: '* - memlock unlimited' in /etc/security/limits.conf; "
        "docker run --ulimit memlock=-1)"};
}

Finding open_files() {
    const std::uint64_t limit = os::open_files_limit();
    const std::string value = limit == os::kUnlimited ? "unlimited" : std::to_string(limit);
    Finding finding{"open files", Severity::kOk, value + " may be open",
                    "getrlimit(RLIMIT_NOFILE) = " + value, ""};
    if (limit < kFilesEnough) {
        finding.severity = Severity::kBetter;
        finding.what +=
            ": transfers of many files by path open fewer at a time, and files that a "
            "program keeps open may run into it";
        finding.cure = "ulimit -n 65536";
    }
    return finding;
}

Finding huge_pages() {
    const std::string mode = os::huge_page_mode();
    Finding finding{"huge pages", Severity::kOk, "transparent huge pages: " + mode,
                    fmt::format("{} = {}", kHugePages, mode), ""};
    if (mode == "never" || mode == "absent") {
        finding.severity = Severity::kBetter;
        finding.what += ": large buffers cost more processor time for direct I/O";
        if (mode == "never") {
            finding.cure = fmt::format("echo madvise | sudo tee {}", kHugePages);
        }
    }
    return finding;
}

Finding processors() {
    const unsigned cpus = os::usable_cpus();
    Finding finding{"processors", Severity::kOk, fmt::format("{} for this process", cpus),
                    fmt::format("sched_getaffinity() = {} processors", cpus), ""};
    if (cpus == 1) {
        finding.severity = Severity::kBetter;
        finding.what += ": I/O, copies and your program take turns on it";
    }
    return finding;
}

Finding memory_nodes() {
    std::size_t nodes = 0;
    std::error_code ignored;
    for (const auto& entry :
         std::filesystem::directory_iterator("/sys/devices/system/node", ignored)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with("node") && name.size() > 4 && name[4] >= '0' && name[4] <= '9') {
            ++nodes;
        }
    }
    return {"memory nodes", Severity::kOk,
            nodes <= 1 ? "one: all memory is equally near"
                       : fmt::format("{}: keep the program near its disk (see disk below)", nodes),
            fmt::format("/sys/devices/system/node: {} nodes", nodes), ""};
}

Finding confinement() {
    const std::string container = os::container();
    const int seccomp = os::seccomp_mode();
    return {"container", Severity::kOk,
            container.empty() ? "none seen"
                              : container + (seccomp == 2 ? ", with a seccomp filter" : ""),
            fmt::format("/proc/self/status: Seccomp = {}",
                        seccomp < 0 ? "unknown" : std::to_string(seccomp)),
            ""};
}

}  // namespace

void check_machine(Findings& findings) {
    findings.push_back(kernel());
    findings.push_back(confinement());
    findings.push_back(io_uring());
    findings.push_back(backend());
    findings.push_back(cachestat());
    findings.push_back(memlock());
    findings.push_back(open_files());
    findings.push_back(huge_pages());
    findings.push_back(processors());
    findings.push_back(memory_nodes());
}

}  // namespace penstock::cli
