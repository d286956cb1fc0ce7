// SPDX-License-Identifier: Apache-2.0
// The local file system with refusals put in: what a test names fails with an errno, and the rest
// is done. Open folders refuse by the paths of what is in them.
#pragma once

#include "os/file_system.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace penstock::test {

enum class StuckCall : std::uint8_t { kOpen, kStatus, kList, kOpenFolder, kLink, kRename, kRemove };

/// The errno of a call for a path; 0: it is done.
using Refuse = std::function<int(StuckCall, const std::string& path)>;

/// `refuse` may be replaced at any time; empty: all is done.
[[nodiscard]] std::shared_ptr<os::FileSystem> make_stuck_files(std::shared_ptr<Refuse> refuse);

}  // namespace penstock::test
