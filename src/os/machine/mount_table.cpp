// SPDX-License-Identifier: Apache-2.0
#include "os/machine/mount_table.hpp"

#include "os/machine/sysfs.hpp"

#include <cstdio>
#include <sstream>

namespace penstock::os {

namespace {

// Blanks, tabs, newlines and backslashes are three octal digits after a backslash.
std::string unescaped(const std::string& text) {
    const auto digit = [](char c) { return c >= '0' && c <= '7'; };
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 3 < text.size() && digit(text[i + 1]) && digit(text[i + 2]) &&
            digit(text[i + 3])) {
            plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                       (text[i + 3] - '0'));
            i += 3;
        } else {
            plain += text[i];
        }
    }
    return plain;
}

bool is_above(const std::string& folder, std::string_view path) {
    return folder == "/" || (path.starts_with(folder) &&
                             (path.size() == folder.size() || path[folder.size()] == '/'));
}

}  // namespace

std::vector<Mount> parse_mountinfo(const std::string& text) {
    std::vector<Mount> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string id;
        std::string parent;
        std::string device;
        std::string root;
        std::string folder;
        Mount mount;
        if (words >> id >> parent >> device >> root >> folder &&
            std::sscanf(device.c_str(), "%u:%u", &mount.device.major, &mount.device.minor) == 2) {
            mount.folder = unescaped(folder);
            found.push_back(std::move(mount));
        }
    }
    return found;
}

std::vector<Mount> mounts() {
    return parse_mountinfo(read_text("/proc/self/mountinfo").value_or(""));
}

DeviceId device_of_path(const std::vector<Mount>& mounts, std::string_view path) {
    const Mount* best = nullptr;
    for (const Mount& mount : mounts) {
        // Two mounts on one folder: the later one hides the other.
        if (is_above(mount.folder, path) &&
            (best == nullptr || mount.folder.size() >= best->folder.size())) {
            best = &mount;
        }
    }
    return best == nullptr ? DeviceId{} : best->device;
}

}  // namespace penstock::os
