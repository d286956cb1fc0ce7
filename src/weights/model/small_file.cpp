// SPDX-License-Identifier: Apache-2.0
#include "weights/model/small_file.hpp"

#include <algorithm>
#include <cerrno>
#include <span>

namespace penstock::weights {

std::optional<std::string> text_of(Engine& engine, const FileSystem& files, const std::string& path,
                                   std::uint64_t bytes_max) {
    try {
        const File file = files.open(path);
        std::string text(std::min(file.size(), bytes_max), '\0');
        text.resize(engine.read(file, Memory(std::as_writable_bytes(std::span(text)))));
        return text;
    } catch (const Error& error) {
        if (error.system_errno() == ENOENT || error.system_errno() == ENOTDIR) {
            return std::nullopt;
        }
        throw;
    }
}

}  // namespace penstock::weights
