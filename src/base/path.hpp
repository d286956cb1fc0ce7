// SPDX-License-Identifier: Apache-2.0
// Paths as text: their last name, and its folder. No file system is accessed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::base {

/// Bytes that a name in a folder may have on Linux. A few file systems take less.
inline constexpr std::size_t kNameBytesMax = 255;

/// "name" of "folder/name" and of "name"; empty of "folder/" and of "/".
[[nodiscard]] inline std::string_view last_name(std::string_view path) {
    return path.substr(path.rfind('/') + 1);
}

/// "folder" of "folder/name", "." of "name", "/" of "/name": a folder that can be opened.
[[nodiscard]] inline std::string folder_of(std::string_view path) {
    const std::size_t slash = path.rfind('/');
    return std::string(slash == std::string_view::npos ? "."
                       : slash == 0                    ? "/"
                                                       : path.substr(0, slash));
}

/// "folder/name", also of "folder/" and "name".
[[nodiscard]] inline std::string join(std::string_view folder, std::string_view name) {
    std::string path(folder);
    if (!path.ends_with('/')) {
        path += '/';
    }
    return path += name;
}

}  // namespace penstock::base
