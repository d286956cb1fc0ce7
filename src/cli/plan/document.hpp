// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace penstock::cli {

/// The text of a small file, or of stdin for "-". Throws Error with the path: where it cannot be
/// read, and where it is longer than 16 MiB.
[[nodiscard]] std::string document_text(const std::string& path);

}  // namespace penstock::cli
