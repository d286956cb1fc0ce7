// SPDX-License-Identifier: Apache-2.0
#include "os/machine/limits.hpp"

#include "base/text/units.hpp"
#include "os/machine/control_groups.hpp"
#include "os/machine/sysfs.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace penstock::os {

namespace {

std::uint64_t soft_limit(__rlimit_resource_t resource) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return kUnlimited;
    }
    return limit.rlim_cur;
}

bool parse_device(const std::string& text, DeviceId& id) {
    return std::sscanf(text.c_str(), "%u:%u", &id.major, &id.minor) == 2;
}

IoLimit& entry(std::vector<IoLimit>& limits, DeviceId id, const std::string& source) {
    for (IoLimit& limit : limits) {
        if (limit.device == id && limit.source == source) {
            return limit;
        }
    }
    limits.push_back(IoLimit{id, 0, 0, 0, 0, source});
    return limits.back();
}

void add_version_1(std::vector<IoLimit>& limits) {
    struct Kind {
        const char* file;
        std::uint64_t IoLimit::*field;
    };
    constexpr std::array<Kind, 4> kKinds{{
        {"blkio.throttle.read_bps_device", &IoLimit::read_bytes_per_s},
        {"blkio.throttle.write_bps_device", &IoLimit::write_bytes_per_s},
        {"blkio.throttle.read_iops_device", &IoLimit::reads_per_s},
        {"blkio.throttle.write_iops_device", &IoLimit::writes_per_s},
    }};
    for (const std::string& folder : control_groups("blkio")) {
        for (const Kind& kind : kKinds) {
            const std::string file = folder + "/" + kind.file;
            std::istringstream lines(read_text(file).value_or(""));
            std::string device;
            std::uint64_t value = 0;
            DeviceId id;
            while (lines >> device >> value) {
                if (parse_device(device, id)) {
                    entry(limits, id, folder).*kind.field = value;
                }
            }
        }
    }
}

}  // namespace

std::uint64_t memlock_limit() {
    return soft_limit(RLIMIT_MEMLOCK);
}

std::string memlock_advice() {
    const std::uint64_t limit = memlock_limit();
    return fmt::format("raise the limit on locked memory (RLIMIT_MEMLOCK is {}): {}",
                       limit == kUnlimited ? "unlimited" : base::format_bytes(limit),
                       kRaiseMemlock);
}

bool may_lock(std::uint64_t bytes) {
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return false;
    }
    const bool locked = ::mlock2(mapped, bytes, MLOCK_ONFAULT) == 0;
    ::munmap(mapped, bytes);
    return locked;
}

std::uint64_t file_size_limit() {
    return soft_limit(RLIMIT_FSIZE);
}

std::uint64_t open_files_limit() {
    return soft_limit(RLIMIT_NOFILE);
}

std::string kernel_release() {
    utsname name{};
    return ::uname(&name) == 0 ? name.release : "unknown";
}

bool release_at_least(const std::string& release, int major, int minor) {
    int its_major = 0;
    int its_minor = 0;
    if (std::sscanf(release.c_str(), "%d.%d", &its_major, &its_minor) != 2) {
        return false;
    }
    return its_major > major || (its_major == major && its_minor >= minor);
}

std::string chosen_word(const std::string& text) {
    const std::size_t open = text.find('[');
    const std::size_t close = text.find(']', open);
    return open == std::string::npos || close == std::string::npos
               ? text
               : text.substr(open + 1, close - open - 1);
}

std::string huge_page_mode() {
    const auto text = read_text("/sys/kernel/mm/transparent_hugepage/enabled");
    return text ? chosen_word(*text) : "absent";
}

int seccomp_mode() {
    std::istringstream lines(read_text("/proc/self/status").value_or(""));
    for (std::string line; std::getline(lines, line);) {
        if (line.rfind("Seccomp:", 0) == 0) {
            return std::atoi(line.c_str() + 8);
        }
    }
    return -1;
}

std::string container() {
    if (::access("/.dockerenv", F_OK) == 0) {
        return "docker";
    }
    if (::access("/run/.containerenv", F_OK) == 0) {
        return "podman";
    }
    if (::access("/var/run/secrets/kubernetes.io", F_OK) == 0) {
        return "kubernetes";
    }
    if (read_text("/proc/version").value_or("").find("gVisor") != std::string::npos) {
        return "gvisor";
    }
    // Readable by root alone; a plain container sets it for its first process.
    const std::string first = read_text("/proc/1/environ").value_or("");
    return first.find("container=") != std::string::npos ? "container" : "";
}

std::vector<IoLimit> parse_io_max(const std::string& text, const std::string& source) {
    std::vector<IoLimit> limits;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string word;
        DeviceId id;
        if (!(words >> word) || !parse_device(word, id)) {
            continue;
        }
        IoLimit& limit = entry(limits, id, source);
        while (words >> word) {
            const std::size_t equals = word.find('=');
            if (equals == std::string::npos) {
                continue;
            }
            const std::string key = word.substr(0, equals);
            const std::uint64_t value = std::strtoull(word.c_str() + equals + 1, nullptr, 10);
            if (key == "rbps") limit.read_bytes_per_s = value;
            if (key == "wbps") limit.write_bytes_per_s = value;
            if (key == "riops") limit.reads_per_s = value;
            if (key == "wiops") limit.writes_per_s = value;
        }
    }
    return limits;
}

std::vector<IoLimit> io_limits() {
    std::vector<IoLimit> limits;
    for (const std::string& folder : control_groups("")) {
        const std::string file = folder + "/io.max";
        for (IoLimit& limit : parse_io_max(read_text(file).value_or(""), file)) {
            limits.push_back(std::move(limit));
        }
    }
    add_version_1(limits);
    return limits;
}

}  // namespace penstock::os
