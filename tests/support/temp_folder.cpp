// SPDX-License-Identifier: Apache-2.0
#include "support/temp_folder.hpp"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace penstock::support {

TempFolder::TempFolder(const std::string& parent) : path_(parent) {
    if (path_.empty()) {
        const char* chosen = std::getenv("TMPDIR");
        path_ = chosen != nullptr && *chosen != '\0' ? chosen : "/tmp";
    }
    path_ += "/penstock-test-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) {
        throw std::system_error(errno, std::generic_category(), "mkdtemp " + path_);
    }
}

TempFolder::~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

}  // namespace penstock::support
