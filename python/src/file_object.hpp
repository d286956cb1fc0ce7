// SPDX-License-Identifier: Apache-2.0
// penstock.File as Python holds it.
#pragma once

#include "nanobind.hpp"

#include <penstock/file.hpp>

#include <string>

namespace penstock::python {

/// Touched with the GIL held; calls that block work on a copy of `file` without it, so that close()
/// on another thread is safe.
struct FileObject {
    File file;
    std::string path;
    Access access = Access::kRead;
    bool append = false;
};

/// The bytes of a path: str, bytes or os.PathLike. `others`: what else the argument takes.
[[nodiscard]] std::string path_bytes(nb::handle path, const char* argument,
                                     const char* others = " or a penstock.File");

}  // namespace penstock::python
