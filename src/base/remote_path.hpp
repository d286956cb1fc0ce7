// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace penstock::base {

/// Whether a path begins as a URL of storage elsewhere.
[[nodiscard]] inline bool is_remote(std::string_view path) {
    for (const std::string_view scheme : {"s3://", "gs://", "hf://", "http://", "https://"}) {
        if (path.starts_with(scheme)) {
            return true;
        }
    }
    return false;
}

}  // namespace penstock::base
