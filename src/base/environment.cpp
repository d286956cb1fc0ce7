// SPDX-License-Identifier: Apache-2.0
#include "base/environment.hpp"

#include <cstdlib>

namespace penstock::base {

std::optional<std::string> environment_text(const char* name) {
    return system_environment_text((std::string("PENSTOCK_") + name).c_str());
}

std::optional<std::string> system_environment_text(const char* name) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') {
        return std::nullopt;
    }
    return std::string(text);
}

}  // namespace penstock::base
