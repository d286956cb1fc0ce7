// SPDX-License-Identifier: Apache-2.0
// The text of an options file, parsed: pure, so that it can be tested without files.
#pragma once

#include "base/result.hpp"

#include <penstock/engine.hpp>

#include <string>
#include <string_view>

namespace penstock::api {

/// `base`, changed by the text. `name` is the file's, for messages. kInvalidArgument names file,
/// key, value and the allowed values.
[[nodiscard]] base::Result<EngineOptions> parse_options(std::string_view text,
                                                        const std::string& name,
                                                        EngineOptions base);

}  // namespace penstock::api
