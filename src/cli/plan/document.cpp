// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/document.hpp"

#include "base/raise.hpp"
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

namespace penstock::cli {

namespace {

constexpr std::size_t kDocumentBytesMax = std::size_t{16} << 20;

}  // namespace

std::string document_text(const std::string& path) {
    base::UniqueFd file;
    int fd = STDIN_FILENO;
    if (path != "-") {
        file = base::UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
        fd = file.get();
        if (fd < 0) {
            base::raise(base::system_error(errno, "open", path));
        }
    }
    std::string text;
    std::array<char, 65536> part{};
    while (true) {
        const ssize_t count = ::read(fd, part.data(), part.size());
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            base::raise(base::system_error(errno, "read", path));
        }
        if (count == 0 && text.empty()) {
            base::raise(base::error(ErrorCode::kInvalidArgument, "read",
                                    "this is empty; expected a JSON document", path));
        }
        if (count == 0) {
            return text;
        }
        text.append(part.data(), static_cast<std::size_t>(count));
        if (text.size() > kDocumentBytesMax) {
            base::raise(base::error(ErrorCode::kInvalidArgument, "read",
                                    "this is longer than 16 MiB; expected a small JSON document",
                                    path));
        }
    }
}

}  // namespace penstock::cli
