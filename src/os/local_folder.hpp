// SPDX-License-Identifier: Apache-2.0
// A folder of the kernel by its descriptor: openat, fstatat and unlinkat, which follow no symbolic
// link and enter no other mount.
#pragma once

#include "base/assert.hpp"
#include "base/unique_fd.hpp"
#include "os/file_system.hpp"

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock::os {

class LocalFolder final : public Folder {
public:
    /// `operation`: named in errors.
    [[nodiscard]] static base::Result<std::shared_ptr<Folder>> open(
        const std::string& path, const char* operation = "open_folder");

    LocalFolder(std::string path, base::UniqueFd fd) : Folder(std::move(path)), fd_(std::move(fd)) {
        PENSTOCK_ASSERT(static_cast<bool>(fd_));
    }

    [[nodiscard]] base::Result<std::vector<std::string>> list() override;
    [[nodiscard]] base::Result<FileStatus> status(const std::string& name) override;
    [[nodiscard]] base::Result<std::shared_ptr<Folder>> open_folder(
        const std::string& name) override;
    [[nodiscard]] base::Result<void> remove(const std::string& name) override;
    [[nodiscard]] base::Result<void> remove_folder(const std::string& name) override;
    [[nodiscard]] base::Result<void> rename(const std::string& from,
                                            const std::string& to) override;
    [[nodiscard]] base::Result<void> take_attributes(const std::string& from) override;
    [[nodiscard]] base::Result<void> sync() override;
    [[nodiscard]] base::Result<std::unique_ptr<FileLock>> lock() override;

private:
    [[nodiscard]] base::Result<void> unlink(const char* operation, const std::string& name,
                                            int flags);

    base::UniqueFd fd_;
};

/// Folder::list() of a path.
[[nodiscard]] base::Result<std::vector<std::string>> list_local_folder(const std::string& path);
[[nodiscard]] FileStatus status_from(const struct stat& status);

}  // namespace penstock::os
