// SPDX-License-Identifier: Apache-2.0
#include "os/machine/control_groups.hpp"

#include "os/machine/limits.hpp"
#include "os/machine/sysfs.hpp"
#include "os/thread.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstddef>
#include <functional>
#include <optional>
#include <sstream>
#include <string_view>

namespace penstock::os {

namespace {

std::string text_of(const std::string& path) {
    return read_text(path).value_or("");
}

// The number at the beginning of a text; nothing for "max".
std::optional<std::uint64_t> number_of(std::string_view text) {
    std::uint64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
        return std::nullopt;
    }
    return value;
}

// The number after a word, in lines of "word number"; nothing when it is not there.
std::optional<std::uint64_t> number_after(const std::string& text, const std::string& wanted) {
    std::istringstream lines(text);
    std::string word;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::uint64_t number = 0;
        if (words >> word >> number && word == wanted) {
            return number;
        }
    }
    return std::nullopt;
}

bool names(const std::string& list, const std::string& word) {
    return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// The path of this process in the hierarchy of a controller; "" names version 2.
std::optional<std::string> path_of_group(const std::string& controller, const std::string& root) {
    std::istringstream lines(text_of(root + "/proc/self/cgroup"));
    for (std::string line; std::getline(lines, line);) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) {
            continue;
        }
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (controller.empty() ? controllers.empty() : names(controllers, controller)) {
            return line.substr(second + 1);
        }
    }
    return std::nullopt;
}

// The kernel writes blanks in these names as "\040".
std::string unescaped(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const bool escape =
            text[i] == '\\' && i + 3 < text.size() &&
            text.find_first_not_of("01234567", i + 1) >= std::min(i + 4, text.size());
        if (!escape) {
            out += text[i];
            continue;
        }
        out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                 (text[i + 3] - '0'));
        i += 3;
    }
    return out;
}

struct Mount {
    std::string shows;  ///< this folder of the hierarchy
    std::string at;
};

// 35 31 0:32 /shows /at rw,relatime - cgroup cgroup rw,memory
std::vector<Mount> mounts_of(const std::string& controller, const std::string& root) {
    std::vector<Mount> out;
    std::istringstream lines(text_of(root + "/proc/self/mountinfo"));
    for (std::string line; std::getline(lines, line);) {
        const std::size_t dash = line.find(" - ");
        if (dash == std::string::npos) {
            continue;
        }
        std::istringstream before(line);
        std::istringstream after(line.substr(dash + 3));
        std::string skipped;
        std::string shows;
        std::string at;
        std::string type;
        std::string options;
        before >> skipped >> skipped >> skipped >> shows >> at;
        after >> type >> skipped >> options;
        if (controller.empty() ? type == "cgroup2"
                               : type == "cgroup" && names(options, controller)) {
            out.push_back({unescaped(shows), unescaped(at)});
        }
    }
    if (out.empty()) {  // /proc is not there, or hides it
        out.push_back(
            {"/", controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller});
    }
    return out;
}

// The part of a path below a folder, "" or with a slash before it. A group outside the mount is
// represented by its nearest one there, the mount itself.
std::string below(const std::string& path, const std::string& folder) {
    const std::string begin = folder == "/" ? "" : folder;
    const std::string rest =
        path == begin || path.starts_with(begin + "/") ? path.substr(begin.size()) : "";
    return rest == "/" || rest.find("/..") != std::string::npos ? "" : rest;
}

void each_limit(const std::string& root, const std::function<void(std::uint64_t)>& visit) {
    const auto told = [&](const std::optional<std::uint64_t>& limit) {
        if (limit) {
            visit(*limit);
        }
    };
    for (const std::string& folder : control_groups("", root)) {
        told(number_of(text_of(folder + "/memory.max")));
        told(number_of(text_of(folder + "/memory.high")));  // beyond it a process only crawls
    }
    for (const std::string& folder : control_groups("memory", root)) {
        told(number_of(text_of(folder + "/memory.limit_in_bytes")));
        // Includes the groups above that cannot be seen from here.
        told(number_after(text_of(folder + "/memory.stat"), "hierarchical_memory_limit"));
    }
}

// The number of processors that a quota of time equals.
unsigned worth(std::optional<std::uint64_t> quota_us, std::optional<std::uint64_t> period_us,
               unsigned most) {
    if (!quota_us || !period_us || *period_us == 0) {
        return most;
    }
    const std::uint64_t whole = *quota_us / *period_us + (*quota_us % *period_us != 0 ? 1 : 0);
    return static_cast<unsigned>(std::clamp<std::uint64_t>(whole, 1, most));
}

}  // namespace

std::vector<std::string> control_groups(const std::string& controller, const std::string& root) {
    std::vector<std::string> out;
    const std::optional<std::string> path = path_of_group(controller, root);
    if (!path) {
        return out;
    }
    for (const Mount& mount : mounts_of(controller, root)) {
        std::string rest = below(*path, mount.shows);
        while (true) {
            out.push_back(root + mount.at + rest);
            if (rest.empty()) {
                break;
            }
            rest.erase(rest.find_last_of('/'));
        }
    }
    return out;
}

std::uint64_t memory_left(const std::string& limit, const std::string& taken,
                          const std::string& statistics) {
    const std::optional<std::uint64_t> most = number_of(limit);
    if (!most) {
        return kUnlimited;  // "max", or no such file
    }
    const auto counted = [&](const char* word) {
        return number_after(statistics, word).value_or(0);
    };
    // Version 1 has the figures that include the groups below under other names; their memory
    // counts too.
    const std::uint64_t cache =
        std::max(counted("inactive_file") + counted("active_file"),
                 counted("total_inactive_file") + counted("total_active_file"));
    const std::uint64_t kept = number_of(taken).value_or(0);
    return *most - std::min(*most, kept - std::min(kept, cache));
}

std::uint64_t usable_memory(const std::string& root) {
    const auto total = number_after(text_of(root + "/proc/meminfo"), "MemTotal:");
    std::uint64_t bytes = total ? *total << 10U
                                : static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                      static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    each_limit(root, [&](std::uint64_t limit) { bytes = std::min(bytes, limit); });
    return bytes;
}

std::uint64_t available_memory(const std::string& root) {
    const auto free = number_after(text_of(root + "/proc/meminfo"), "MemAvailable:");
    std::uint64_t bytes = std::min(free ? *free << 10U : kUnlimited, usable_memory(root));
    const auto left = [&](const std::string& folder, const char* limit, const char* taken) {
        bytes = std::min(bytes, memory_left(text_of(folder + limit), text_of(folder + taken),
                                            text_of(folder + "/memory.stat")));
    };
    for (const std::string& folder : control_groups("", root)) {
        left(folder, "/memory.max", "/memory.current");
        left(folder, "/memory.high", "/memory.current");
    }
    for (const std::string& folder : control_groups("memory", root)) {
        left(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes");
    }
    return bytes;
}

std::optional<std::chrono::microseconds> memory_stall(const std::string& root) {
    // some avg10=0.12 avg60=0.05 avg300=0.00 total=23227125
    const auto total = [](const std::string& text) -> std::optional<std::chrono::microseconds> {
        constexpr std::string_view kWord = " total=";
        const std::size_t at = text.find(kWord);
        const auto number = text.starts_with("some ") && at != std::string::npos
                                ? number_of(std::string_view(text).substr(at + kWord.size()))
                                : std::nullopt;
        constexpr std::uint64_t kMost = INT64_MAX / 100'000;  // ten times as many nanoseconds fit
        return number ? std::optional(std::chrono::microseconds(std::min(*number, kMost)))
                      : std::nullopt;
    };
    for (const std::string& folder : control_groups("", root)) {
        if (const auto found = total(text_of(folder + "/memory.pressure"))) {
            return found;
        }
    }
    return total(text_of(root + "/proc/pressure/memory"));
}

namespace {

// Processors that the groups' quota of time equals.
unsigned quota_of_groups(const std::string& root) {
    unsigned most = UINT_MAX;
    for (const std::string& folder : control_groups("", root)) {
        std::istringstream words(text_of(folder + "/cpu.max"));  // "250000 100000"
        std::string quota;
        std::string period;
        words >> quota >> period;
        most = worth(number_of(quota), number_of(period), most);
    }
    for (const std::string& folder : control_groups("cpu", root)) {
        most = worth(number_of(text_of(folder + "/cpu.cfs_quota_us")),  // "-1": none
                     number_of(text_of(folder + "/cpu.cfs_period_us")), most);
    }
    return most;
}

}  // namespace

// A quota changes rarely, and to read it takes as long as to load a small file.
unsigned usable_processors(const std::string& root) {
    if (!root.empty()) {
        return std::min(usable_cpus(), quota_of_groups(root));
    }
    constexpr std::int64_t kSeconds = 2;
    static std::atomic<std::int64_t> read_at{INT64_MIN / 2};
    static std::atomic<unsigned> quota{UINT_MAX};
    const std::int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                                 std::chrono::steady_clock::now().time_since_epoch())
                                 .count();
    if (now - read_at.load(std::memory_order_acquire) > kSeconds) {
        quota.store(quota_of_groups(root), std::memory_order_relaxed);
        read_at.store(now, std::memory_order_release);
    }
    return std::min(usable_cpus(), quota.load(std::memory_order_relaxed));
}

}  // namespace penstock::os
