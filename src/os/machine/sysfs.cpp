// SPDX-License-Identifier: Apache-2.0
#include "os/machine/sysfs.hpp"

#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>

namespace penstock::os {

std::optional<std::string> read_text(const std::string& path) {
    const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) {
        return std::nullopt;
    }
    std::string text;
    std::array<char, 4096> piece{};
    while (true) {
        const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return std::nullopt;
        }
        if (got == 0) {
            break;
        }
        text.append(piece.data(), static_cast<std::size_t>(got));
    }
    text.erase(text.find_last_not_of(" \n\t") + 1);
    return text;
}

std::optional<std::int64_t> read_number(const std::string& path) {
    const std::optional<std::string> text = read_text(path);
    std::int64_t value = 0;
    if (!text ||
        std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc()) {
        return std::nullopt;
    }
    return value;
}

std::string sysfs_folder(DeviceId id) {
    return fmt::format("/sys/dev/block/{}:{}", id.major, id.minor);
}

DeviceId whole_disk(DeviceId id) {
    const std::string folder = sysfs_folder(id);
    if (::access((folder + "/partition").c_str(), F_OK) != 0) {
        return id;
    }
    // The folder is a link to .../nvme0n1/nvme0n1p1: ".." is the disk.
    const std::optional<std::string> text = read_text(folder + "/../dev");
    DeviceId disk;
    if (text) {
        const char* end = text->data() + text->size();
        const auto [colon, error] = std::from_chars(text->data(), end, disk.major);
        if (error == std::errc() && colon != end && *colon == ':' &&
            std::from_chars(colon + 1, end, disk.minor).ec == std::errc()) {
            return disk;
        }
    }
    return id;
}

}  // namespace penstock::os
