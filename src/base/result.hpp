// SPDX-License-Identifier: Apache-2.0
// Operating errors are values: Result<T>. They become exceptions only at the public border
// (base/raise.hpp). An Error is built only after a failure, so its strings cost nothing otherwise.
// It can be built without memory, too: texts that cannot be allocated are left out.
#pragma once

#include <penstock/error.hpp>

#include <concepts>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <tl/expected.hpp>
#include <type_traits>

namespace penstock::base {

struct Error {
    ErrorCode code = ErrorCode::kSystem;
    int system_errno = 0;
    std::string operation;
    std::string path;
    std::uint64_t offset = kNoOffset;
    std::string message;  ///< the request, the failure, the advice; empty: see describe()

    /// The whole sentence for the user. If there was no memory for the message, the usual one of
    /// the code or errno.
    [[nodiscard]] std::string describe() const;
};

template <typename T>
using Result = tl::expected<T, Error>;

using Failure = tl::unexpected<Error>;

/// An error of the system; the message has operation, path, offset and errno, with `cure` (or, when
/// empty, the usual advice for this errno) at its end.
[[nodiscard]] Error system_error(int system_errno, std::string_view operation,
                                 std::string_view path, std::uint64_t offset = kNoOffset,
                                 std::string_view cure = {}) noexcept;

[[nodiscard]] Error error(ErrorCode code, std::string_view operation, std::string_view message,
                          std::string_view path = {}, std::uint64_t offset = kNoOffset) noexcept;

/// The same for callers that must not throw: `make_message` may run out of memory.
template <std::invocable MakeMessage>
[[nodiscard]] Error error(ErrorCode code, std::string_view operation,
                          const MakeMessage& make_message, std::string_view path = {},
                          std::uint64_t offset = kNoOffset) noexcept {
    try {
        return error(code, operation, std::string_view(make_message()), path, offset);
    } catch (const std::bad_alloc&) {
        return error(code, operation, std::string_view(), path, offset);
    }
}

/// Memory ran out. Needs no memory itself.
[[nodiscard]] Error out_of_memory(std::string_view operation) noexcept;

/// The error of a thread that the system did not start. `more`: the end of the message.
[[nodiscard]] Error refused_thread(const std::system_error& refused, std::string_view operation,
                                   std::string_view more = {}) noexcept;

[[nodiscard]] inline Failure fail(Error e) {
    return Failure(std::move(e));
}

/// The Result of `call`, with lack of memory or threads as an error instead of an exception: for
/// threads of ours, which an exception would end with the process, and for operations that are
/// counted or started already.
template <std::invocable Call>
[[nodiscard]] std::invoke_result_t<Call> as_result(std::string_view operation,
                                                   Call&& call) noexcept {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        return fail(out_of_memory(operation));
    } catch (const std::system_error& refused) {
        return fail(refused_thread(refused, operation));
    }
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
