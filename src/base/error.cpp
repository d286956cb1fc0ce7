// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"

#include <penstock/error.hpp>

#include <cerrno>

namespace penstock {

namespace {

class Category final : public std::error_category {
public:
    [[nodiscard]] const char* name() const noexcept override { return "penstock"; }
    [[nodiscard]] std::string message(int code) const override {
        switch (static_cast<ErrorCode>(code)) {
            case ErrorCode::kInvalidArgument:
                return "invalid argument";
            case ErrorCode::kSystem:
                return "the system refused";
            case ErrorCode::kEndOfFile:
                return "end of file";
            case ErrorCode::kCancelled:
                return "cancelled";
            case ErrorCode::kWouldBlock:
                return "too many transfers in flight";
            case ErrorCode::kUnsupported:
                return "not supported here";
            case ErrorCode::kOutOfMemory:
                return "out of memory";
            case ErrorCode::kClosed:
                return "closed";
            case ErrorCode::kDamaged:
                return "damaged file";
            case ErrorCode::kChanged:
                return "changed memory";
        }
        return "unknown";
    }
};

}  // namespace

const std::error_category& error_category() noexcept {
    static const Category instance;
    return instance;
}

Error::Error(ErrorCode code, int system_errno, std::string operation, std::string path,
             std::uint64_t offset, const std::string& message)
    : std::system_error(std::error_code(static_cast<int>(code), error_category())),
      reason_(code),
      system_errno_(system_errno),
      operation_(std::move(operation)),
      path_(std::move(path)),
      offset_(offset),
      text_(message) {}

bool Error::is_about_the_file() const noexcept {
    if (reason_ != ErrorCode::kSystem) {
        return reason_ == ErrorCode::kDamaged || reason_ == ErrorCode::kEndOfFile;
    }
    switch (system_errno_) {
        case ENOENT:
        case ENOTDIR:
        case EISDIR:
        case ELOOP:
        // The data is lost.
        case EIO:
        case EREMOTEIO:
        case ENODATA:
        case EILSEQ:
        case EBADMSG:
        case EUCLEAN:
            return true;
        default:
            return false;
    }
}

namespace base {

void raise(const Error& error) {
    throw penstock::Error(error.code, error.system_errno, error.operation, error.path, error.offset,
                          error.describe());
}

}  // namespace base
}  // namespace penstock
