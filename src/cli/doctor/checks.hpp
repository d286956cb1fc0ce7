// SPDX-License-Identifier: Apache-2.0
// What doctor looks at. Each check reads what the system tells to everybody, so no rights are
// needed; what may not be read is left out or said to be unknown, never guessed.
#pragma once

#include "cli/doctor/finding.hpp"

#include <string>

namespace penstock::cli {

/// Kernel, io_uring, the backend taken, limits, huge pages, processors and memory nodes.
void check_machine(Findings& findings);

/// Direct I/O and alignment on PATH, its disk and queue, free space, I/O limits, and 1 MiB written
/// there and read back (in a file without a name) when PATH is a folder.
void check_path(const std::string& path, Findings& findings);

}  // namespace penstock::cli
