// SPDX-License-Identifier: Apache-2.0
#include "base/environment.hpp"

#include <cstdlib>

namespace penstock::base {

std::optional<std::string> environment_text(const char* name) {
    const std::string variable = std::string("PENSTOCK_") + name;
    const char* text = std::getenv(variable.c_str());
    if (text == nullptr || *text == '\0') {
        return std::nullopt;
    }
    return std::string(text);
}

}  // namespace penstock::base
