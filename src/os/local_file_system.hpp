// SPDX-License-Identifier: Apache-2.0
// The file system of this machine.
#pragma once

#include "os/file_system.hpp"

#include <memory>
#include <string>

namespace penstock::os {

/// Stateless; one object serves everybody.
[[nodiscard]] std::shared_ptr<FileSystem> local_file_system();

/// Whether there is no such name (ENOENT, ENOTDIR, ENAMETOOLONG): a look that makes no Error, which
/// would cost more than the system call.
[[nodiscard]] bool is_missing(const std::string& path);

/// FileSystem::take_attributes() to an open file or folder; `to` is for people.
[[nodiscard]] base::Result<void> take_local_attributes(const std::string& from, int fd,
                                                       const std::string& to);

}  // namespace penstock::os
