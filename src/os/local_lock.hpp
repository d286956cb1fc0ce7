// SPDX-License-Identifier: Apache-2.0
// A lock of the kernel (flock) on an open file or folder: closing the descriptor releases it.
#pragma once

#include "base/assert.hpp"
#include "base/unique_fd.hpp"
#include "os/file_system.hpp"

#include <sys/stat.h>

#include <string>
#include <utility>

namespace penstock::os {

class LocalLock final : public FileLock {
public:
    LocalLock(base::UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {
        PENSTOCK_ASSERT(static_cast<bool>(fd_));
    }

    [[nodiscard]] bool is_named() const noexcept override {
        struct stat locked {};
        struct stat named {};
        return ::fstat(fd_.get(), &locked) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
               locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
    }

private:
    base::UniqueFd fd_;
    std::string path_;
};

}  // namespace penstock::os
