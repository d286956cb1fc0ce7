// SPDX-License-Identifier: Apache-2.0
// Errors of the public API. Inside the library operating errors are values; the API turns them into
// an Error with all their details.
#pragma once

#include <cstdint>
#include <string>
#include <system_error>

#if defined(PENSTOCK_BUILDING) || !defined(PENSTOCK_SHARED)
#define PENSTOCK_API __attribute__((visibility("default")))
#else
#define PENSTOCK_API
#endif

namespace penstock {

/// Why an operation failed. Stable numbers: they are the values of `Error::code()`.
enum class ErrorCode : int {
    kInvalidArgument = 1,  ///< the call is invalid; nothing was done
    kSystem = 2,           ///< the system refused; `Error::system_errno()` says how
    kEndOfFile = 3,        ///< a read met the end of the file and short reads were not allowed
    kCancelled = 4,        ///< the transfer was cancelled; the extent of a write is undefined
    kWouldBlock = 5,       ///< a limit on transfers in flight is reached; try again later
    kUnsupported = 6,      ///< this machine, file system or file cannot do it; the message says why
    kOutOfMemory = 7,      ///< memory could not be allocated or locked
    kClosed = 8,           ///< the file or engine is closed
    kDamaged = 9,          ///< a file is invalid: cut short, changed, or hostile
    kChanged = 10,         ///< memory changed, or was freed, while it was saved; nothing was saved
};

/// The category of `ErrorCode`; its name is "penstock".
PENSTOCK_API const std::error_category& error_category() noexcept;

/// The offset of an error without one.
inline constexpr std::uint64_t kNoOffset = ~std::uint64_t{0};

/// Thrown by every public call that fails. `what()` has the request, the failure and the fix.
/// Copyable, thread-safe to read.
class PENSTOCK_API Error : public std::system_error {
public:
    Error(ErrorCode code, int system_errno, std::string operation, std::string path,
          std::uint64_t offset, const std::string& message);

    [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
    /// The operation that failed: "open", "read", "write", "sync", ...
    [[nodiscard]] const std::string& operation() const noexcept { return operation_; }
    /// The file concerned, or empty.
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    /// The offset in the file of the first requested byte that was not moved, or `kNoOffset`.
    [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
    /// The errno of the system, or 0 if the error is not of the system.
    [[nodiscard]] int system_errno() const noexcept { return system_errno_; }
    /// The same as `code()`, as an ErrorCode.
    [[nodiscard]] ErrorCode reason() const noexcept { return reason_; }
    /// Whether the file is the reason, and not this machine or the call: it is damaged, cut short,
    /// missing, or its bytes cannot be read (EIO). A search for the newest valid checkpoint skips
    /// such a file. A file that could not be read because of memory, descriptors, a permission or a
    /// server (ENOMEM, EMFILE, EACCES, ESTALE) may be valid.
    [[nodiscard]] bool is_about_the_file() const noexcept;

private:
    ErrorCode reason_;
    int system_errno_;
    std::string operation_;
    std::string path_;
    std::uint64_t offset_;
    std::string text_;
};

}  // namespace penstock
