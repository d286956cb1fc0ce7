// SPDX-License-Identifier: Apache-2.0
#include "os/limits.hpp"

#include "os/sysfs.hpp"

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

// The paths of this process in the hierarchy of a controller; "" names the unified one.
std::string cgroup_path(const std::string& controller) {
    std::istringstream lines(read_text("/proc/self/cgroup").value_or(""));
    for (std::string line; std::getline(lines, line);) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) {
            continue;
        }
        const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
        if (names == ",,"
                ? controller.empty()
                : !controller.empty() && names.find("," + controller + ",") != std::string::npos) {
            return line.substr(second + 1);
        }
    }
    return {};
}

// Calls with the folder of the group and of each one above it.
template <typename F>
void each_group(const std::string& root, std::string path, F&& visit) {
    while (!path.empty()) {
        visit(root + (path == "/" ? "" : path));
        if (path == "/") {
            break;
        }
        path.erase(path.find_last_of('/'));
        if (path.empty()) {
            path = "/";
        }
    }
}

// The number behind a word, in lines of "word number"; 0 when it is not there.
std::uint64_t number_behind(const std::string& text, const std::string& wanted) {
    std::istringstream lines(text);
    std::string word;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::uint64_t number = 0;
        if (words >> word >> number && word == wanted) {
            return number;
        }
    }
    return 0;
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
    each_group("/sys/fs/cgroup/blkio", cgroup_path("blkio"), [&](const std::string& folder) {
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
    });
}

}  // namespace

std::uint64_t memlock_limit() {
    return soft_limit(RLIMIT_MEMLOCK);
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

std::uint64_t memory_left(const std::string& limit, const std::string& taken,
                          const std::string& statistics) {
    char* end = nullptr;
    const std::uint64_t most = std::strtoull(limit.c_str(), &end, 10);
    if (end == limit.c_str()) {
        return kUnlimited;  // "max", or no such file
    }
    // Version 1 has those of the groups below, whose memory counts too, under other names.
    const std::uint64_t cache = std::max(
        number_behind(statistics, "inactive_file") + number_behind(statistics, "active_file"),
        number_behind(statistics, "total_inactive_file") +
            number_behind(statistics, "total_active_file"));
    const std::uint64_t kept = std::strtoull(taken.c_str(), nullptr, 10);
    return most - std::min(most, kept - std::min(kept, cache));
}

std::uint64_t available_memory() {
    const auto text = [](const std::string& path) { return read_text(path).value_or(""); };
    std::uint64_t available = number_behind(text("/proc/meminfo"), "MemAvailable:") << 10U;
    each_group("/sys/fs/cgroup", cgroup_path(""), [&](const std::string& folder) {
        available = std::min(
            available, memory_left(text(folder + "/memory.max"), text(folder + "/memory.current"),
                                   text(folder + "/memory.stat")));
    });
    each_group("/sys/fs/cgroup/memory", cgroup_path("memory"), [&](const std::string& folder) {
        available = std::min(available, memory_left(text(folder + "/memory.limit_in_bytes"),
                                                    text(folder + "/memory.usage_in_bytes"),
                                                    text(folder + "/memory.stat")));
    });
    return available;
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
    // Readable by root alone; a plain container tells its first process so.
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
    each_group("/sys/fs/cgroup", cgroup_path(""), [&](const std::string& folder) {
        const std::string file = folder + "/io.max";
        for (IoLimit& limit : parse_io_max(read_text(file).value_or(""), file)) {
            limits.push_back(std::move(limit));
        }
    });
    add_version_1(limits);
    return limits;
}

}  // namespace penstock::os
