// SPDX-License-Identifier: Apache-2.0
// Converts an Error value into an exception, at the public border.
#pragma once

#include "base/result.hpp"

#include <penstock/error.hpp>

#include <utility>

namespace penstock::base {

[[noreturn]] void raise(const Error& error);

template <typename T>
T unwrap(Result<T>&& result) {
    if (!result) {
        raise(result.error());
    }
    if constexpr (!std::is_void_v<T>) {
        return std::move(*result);
    }
}

}  // namespace penstock::base
