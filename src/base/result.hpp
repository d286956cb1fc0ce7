// SPDX-License-Identifier: Apache-2.0
// Operating errors are values: Result<T>. They become exceptions only at the public border
// (base/raise.hpp). An Error is built when something failed, so its strings cost nothing otherwise.
#pragma once

#include <penstock/error.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace penstock::base {

struct Error {
    ErrorCode code = ErrorCode::kSystem;
    int system_errno = 0;
    std::string operation;
    std::string path;
    std::uint64_t offset = kNoOffset;
    std::string message;  ///< what was asked, what happened, what to do

    /// The whole sentence that a user reads.
    [[nodiscard]] std::string describe() const;
};

template <typename T>
using Result = tl::expected<T, Error>;

using Failure = tl::unexpected<Error>;

/// An error that the system gave; the message is made of operation, path, offset and errno, with
/// `cure` (or, when empty, what usually helps against this errno) at its end.
[[nodiscard]] Error system_error(int system_errno, std::string_view operation,
                                 std::string_view path, std::uint64_t offset = kNoOffset,
                                 std::string_view cure = {});

[[nodiscard]] Error error(ErrorCode code, std::string_view operation, std::string_view message,
                          std::string_view path = {}, std::uint64_t offset = kNoOffset);

[[nodiscard]] inline Failure fail(Error e) {
    return Failure(std::move(e));
}

}  // namespace penstock::base

/// Unwraps a Result into `variable`, or returns its error from the enclosing function.
#define PENSTOCK_TRY(variable, expression)                                  \
    auto variable##_result = (expression);                                  \
    if (!variable##_result) {                                               \
        return ::tl::make_unexpected(std::move(variable##_result.error())); \
    }                                                                       \
    auto variable = std::move(*variable##_result)

/// The same for Result<void>.
#define PENSTOCK_CHECK(expression)                                     \
    if (auto check_result = (expression); !check_result) {             \
        return ::tl::make_unexpected(std::move(check_result.error())); \
    }
