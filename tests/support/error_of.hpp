// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <penstock/error.hpp>

#include <optional>

namespace penstock::support {

/// The Error that a call threw, or nothing.
template <typename Call>
[[nodiscard]] std::optional<Error> error_of(Call&& call) {
    try {
        static_cast<void>(call());
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

}  // namespace penstock::support
