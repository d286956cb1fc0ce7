// SPDX-License-Identifier: Apache-2.0
#include "base/result.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace penstock::base {

namespace {

// Detects "s3://bucket/file"; making a path absolute has left one slash of it.
bool is_url(std::string_view path) {
    for (std::size_t at = path.find(":/"); at != std::string_view::npos;
         at = path.find(":/", at + 1)) {
        const std::size_t slash = path.substr(0, at).rfind('/');
        const std::string_view scheme =
            path.substr(slash == std::string_view::npos ? 0 : slash + 1, at - slash - 1);
        if (scheme.size() > 1 &&
            scheme.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789+-.") ==
                std::string_view::npos) {
            return true;
        }
    }
    return false;
}

bool is_of_kernel(std::string_view path) {
    return path.starts_with("/proc/") || path.starts_with("/sys/");
}

// The usual advice for an errno; empty if it needs none.
std::string_view usual_cure(int system_errno, std::string_view path) {
    switch (system_errno) {
        case ENOENT:
            return is_url(path) ? "only local paths are opened, no URL (scheme://...): copy it to "
                                  "a local disk first, or begin with ./ the name of a local folder"
                   : is_of_kernel(path)
                       ? "check the path; only the kernel makes files there: save to a folder of a "
                         "disk"
                       : "check the path, and that its folder is there";
        case ESPIPE:
            return "it has no offsets to read or write at (a pipe, or a file of /proc or /sys)";
        case EACCES:
        case EPERM:
            return "check the permissions of the file and of its folders";
        case EISDIR:
            return "give the path of a file, not of a folder";
        case ENOTDIR:
            return "a part of the path is a file, not a folder";
        case ENOSPC:
            return "free some space or write somewhere else";
        case EDQUOT:
            return "the disk quota of this user is used up";
        case EROFS:
            return "the file system is mounted read-only";
        case EMFILE:
            return "raise the limit on open files (ulimit -n)";
        case ENOMEM:
            return "free memory, or lower the engine's in_flight_bytes";
        case EIO:
            return "the device failed; look at the kernel log (dmesg)";
        case EBADF:
            return "open the file for this kind of access";
        case EFBIG:
            return "the file system, or the limit of this process (ulimit -f), allows no file that "
                   "large";
        case EFAULT:
            return "the caller's memory is not there (it was unmapped, or it maps a file that was "
                   "cut); map the file again, or give other memory";
        case ECANCELED:
            return "the kernel could start no thread for it; raise the limit on threads (ulimit "
                   "-u, or pids.max of the cgroup)";
        case ETXTBSY:
            return "the file is a program that is running";
        default:
            return {};
    }
}

std::string system_message(int system_errno, std::string_view path, std::string_view cure) {
    if (cure.empty()) {
        cure = usual_cure(system_errno, path);
    }
    std::string message = std::generic_category().message(system_errno);
    message += fmt::format(" (errno {})", system_errno);
    if (!cure.empty()) {
        message += fmt::format("; {}", cure);
    }
    return message;
}

std::string usual_message(const Error& error) {
    if (error.system_errno != 0) {
        return system_message(error.system_errno, error.path, {});
    }
    if (error.code == ErrorCode::kOutOfMemory) {
        return fmt::format("memory ran out; {}", usual_cure(ENOMEM, {}));
    }
    return error_category().message(static_cast<int>(error.code));
}

// Makes an Error with as many of its texts as there is memory for.
template <typename MakeMessage>
Error make_error(ErrorCode code, int system_errno, std::string_view operation,
                 std::string_view path, std::uint64_t offset,
                 const MakeMessage& make_message) noexcept {
    Error made;
    made.code = code;
    made.system_errno = system_errno;
    made.offset = offset;
    try {
        made.operation = operation;
        made.path = path;
        made.message = make_message();
    } catch (const std::bad_alloc&) {
        return made;
    }
    return made;
}

}  // namespace

std::string Error::describe() const {
    std::string text = operation.empty() ? std::string("penstock") : operation;
    if (!path.empty()) {
        text += fmt::format(" '{}'", path);
    }
    if (offset != kNoOffset) {
        text += fmt::format(" at byte {}", offset);
    }
    text += ": ";
    text += message.empty() ? usual_message(*this) : message;
    return text;
}

Error system_error(int system_errno, std::string_view operation, std::string_view path,
                   std::uint64_t offset, std::string_view cure) noexcept {
    return make_error(ErrorCode::kSystem, system_errno, operation, path, offset,
                      [&] { return system_message(system_errno, path, cure); });
}

Error error(ErrorCode code, std::string_view operation, std::string_view message,
            std::string_view path, std::uint64_t offset) noexcept {
    return make_error(code, 0, operation, path, offset, [&] { return message; });
}

Error out_of_memory(std::string_view operation) noexcept {
    return make_error(ErrorCode::kOutOfMemory, 0, operation, {}, kNoOffset,
                      [] { return std::string_view(); });
}

Error refused_thread(const std::system_error& refused, std::string_view operation,
                     std::string_view more) noexcept {
    const int number = refused.code().value();
    if (number != EAGAIN) {  // as_result() meets other errors, too
        return system_error(number, operation, {});
    }
    return make_error(ErrorCode::kSystem, number, operation, {}, kNoOffset, [number, more] {
        return system_message(number, {},
                              fmt::format("raise the limit on threads (ulimit -u, or pids.max of "
                                          "the cgroup) or on memory (ulimit -v){}",
                                          more));
    });
}

}  // namespace penstock::base
