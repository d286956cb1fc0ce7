// SPDX-License-Identifier: Apache-2.0
// The border: an Error value becomes an exception.
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
