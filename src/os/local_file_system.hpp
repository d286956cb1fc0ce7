// SPDX-License-Identifier: Apache-2.0
// The file system of this machine.
#pragma once

#include "os/file_system.hpp"

#include <memory>

namespace penstock::os {

/// Stateless; one object serves everybody.
[[nodiscard]] std::shared_ptr<FileSystem> local_file_system();

}  // namespace penstock::os
