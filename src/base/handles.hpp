// SPDX-License-Identifier: Apache-2.0
// Checks of what callers of the public API hold: a handle may be moved from, an engine null.
#pragma once

#include "base/raise.hpp"

#include <memory>
#include <string_view>
#include <utility>

namespace penstock::base {

/// The object of a handle. Throws kInvalidArgument for a handle that was moved from.
template <typename T>
T& object_of(const std::unique_ptr<T>& handle, std::string_view operation) {
    if (handle == nullptr) {
        raise(error(ErrorCode::kInvalidArgument, operation,
                    "this handle is empty: it was moved from; use the one that it was moved to"));
    }
    return *handle;
}

/// The engine. Throws kInvalidArgument for a null one.
template <typename T>
std::shared_ptr<T> engine_given(std::shared_ptr<T> engine, std::string_view operation) {
    if (engine == nullptr) {
        raise(error(ErrorCode::kInvalidArgument, operation,
                    "it needs an engine, and this one is null; make one with "
                    "std::make_shared<Engine>()"));
    }
    return engine;
}

}  // namespace penstock::base
