// SPDX-License-Identifier: Apache-2.0
#include "report/output_file.hpp"

#include "base/path.hpp"
#include "base/random.hpp"

#include <penstock/error.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace penstock::report {

namespace {

bool is_of(const struct stat& one, const struct stat& other) {
    return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Detects /dev/stdout of `> FILE`: a new file under that name would not be what we print to.
bool is_open_already(const struct stat& is) {
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
        struct stat open {};
        if (::fstat(fd, &open) == 0 && is_of(is, open)) {
            return true;
        }
    }
    return false;
}

// Follows links of the last name, also one that leads to no file yet.
std::string place_of(const std::string& path) {
    constexpr int kLinksMax = 40;  // as the kernel
    std::error_code none;
    std::filesystem::path place = path;
    for (int links = 0; links < kLinksMax; ++links) {
        const std::filesystem::path next = std::filesystem::read_symlink(place, none);
        if (none) {
            break;
        }
        place = place.parent_path() / next;
    }
    return place.string();
}

// Makes a new file in the folder: never an existing one, and never through a link. The name does
// not grow with that of the file, which may have the longest.
std::string fresh_name(const std::string& path) {
    return base::join(base::folder_of(path),
                      fmt::format(".penstock-{:016x}.tmp", base::random_bits()));
}

int write_through(const std::string& path, std::string_view text, const char* mode,
                  const struct stat* like) {
    std::FILE* const out = std::fopen(path.c_str(), mode);
    if (out == nullptr) {
        return errno;
    }
    if (like != nullptr) {  // an owner or a mode that cannot be kept is no reason to fail
        const int fd = ::fileno(out);
        [[maybe_unused]] const int owned = ::fchown(fd, like->st_uid, like->st_gid);
        [[maybe_unused]] const int kept = ::fchmod(fd, like->st_mode & 07777);
    }
    errno = 0;
    const bool written =
        std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
    const int code = written ? 0 : errno;
    if (std::fclose(out) != 0 && code == 0) {
        return errno;
    }
    return written || code != 0 ? code : EIO;
}

bool refuses_new_files(int code) {
    return code == EACCES || code == EPERM || code == EROFS;
}

}  // namespace

bool is_same_file(const std::string& one, const std::string& other) {
    struct stat first {};
    struct stat second {};
    const bool has_first = ::stat(one.c_str(), &first) == 0;
    const bool has_second = ::stat(other.c_str(), &second) == 0;
    if (has_first && has_second) {
        return S_ISREG(first.st_mode) && is_of(first, second);
    }
    std::error_code unknown;
    const auto place = std::filesystem::weakly_canonical(place_of(one), unknown);
    return !has_first && !has_second && !unknown &&
           place == std::filesystem::weakly_canonical(place_of(other), unknown) && !unknown;
}

void refuse_same_output(const std::string& option, const std::string& path,
                        const std::string& other_option, const std::string& other) {
    if (path.empty() || other.empty() || path == "-" || other == "-" ||
        !is_same_file(path, other)) {
        return;
    }
    throw Error(ErrorCode::kInvalidArgument, 0, "write", path, kNoOffset,
                fmt::format("{}: '{}' is also the file of {}, and one would replace the other; "
                            "give each a file of its own",
                            option, path, other_option));
}

int why_not_writable(const std::string& path) {
    struct stat is {};
    if (::stat(path.c_str(), &is) == 0) {
        if (S_ISDIR(is.st_mode)) {
            return EISDIR;
        }
        return ::access(path.c_str(), W_OK) == 0 ? 0 : errno;
    }
    if (errno != ENOENT) {
        return errno;
    }
    const std::string place = place_of(path);
    if (base::last_name(place).empty()) {
        return EISDIR;
    }
    const std::string fresh = fresh_name(place);
    const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        return errno;
    }
    ::close(fd);
    ::unlink(fresh.c_str());
    return 0;
}

bool is_json_of_ours(const std::string& path) {
    constexpr std::size_t kLookedAt = 65536;
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return true;
    }
    std::string text(kLookedAt, '\0');
    file.read(text.data(), kLookedAt);
    text.resize(static_cast<std::size_t>(file.gcount()));
    // The commands of this program write "command": ["penstock", ...]; those of the Python package
    // that, or "program": "penstock ...".
    const auto has = [&](std::string_view key, std::string_view word) {
        const std::size_t at = text.find(key);
        const std::size_t value =
            at == std::string::npos ? at : text.find_first_not_of(" \n", at + key.size());
        return value != std::string::npos && text.compare(value, word.size(), word) == 0;
    };
    return text.starts_with('{') &&
           (has("\"command\": [", "\"penstock\"") || has("\"program\":", "\"penstock "));
}

int write_output(const std::string& path, std::string_view text) {
    struct stat is {};
    const bool there = ::stat(path.c_str(), &is) == 0;
    const std::string target = place_of(path);
    // A descriptor's name in /dev/fd may lead to a file that has lost its own.
    if (there && (!S_ISREG(is.st_mode) || is_open_already(is) || !is_same_file(path, target))) {
        return write_through(path, text, "we", nullptr);
    }
    const std::string fresh = fresh_name(target);
    int code = write_through(fresh, text, "wxe", there ? &is : nullptr);
    if (there && refuses_new_files(code)) {  // a file of ours in a folder of others
        return write_through(path, text, "we", nullptr);
    }
    if (code == 0 && std::rename(fresh.c_str(), target.c_str()) != 0) {
        code = errno;
    }
    if (code != 0) {
        ::unlink(fresh.c_str());
    }
    return code;
}

}  // namespace penstock::report
