// SPDX-License-Identifier: Apache-2.0
#include "base/environment.hpp"

#include "base/units.hpp"

#include <fmt/format.h>

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

Result<std::uint64_t> environment_bytes(const char* name, std::uint64_t otherwise,
                                        std::uint64_t min, std::uint64_t max) {
    const auto text = environment_text(name);
    if (!text) {
        return otherwise;
    }
    const auto value = parse_bytes(*text);
    if (!value || *value < min || *value > max) {
        return fail(
            error(ErrorCode::kInvalidArgument, "options",
                  fmt::format("the environment variable PENSTOCK_{} is '{}'; it takes a number "
                              "from {} to {}",
                              name, *text, min, max)));
    }
    return *value;
}

}  // namespace penstock::base
