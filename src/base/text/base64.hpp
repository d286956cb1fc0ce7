// SPDX-License-Identifier: Apache-2.0
// Bytes in JSON (RFC 4648, with padding).
#pragma once

#include <string>
#include <string_view>

namespace penstock::base {

void append_base64(std::string& out, std::string_view bytes);

/// False: not base64, or with unused bits set.
[[nodiscard]] bool parse_base64(std::string_view text, std::string& bytes);

}  // namespace penstock::base
