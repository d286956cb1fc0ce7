// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/replace.hpp"

#include "base/raise.hpp"
#include "base/random.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::checkpoint {

namespace {

constexpr std::size_t kNameBytesMax = 200;  // of the old name in the temporary one: 255 in all
constexpr std::size_t kRandomDigits = 16;
constexpr std::string_view kSuffix = ".tmp";
// Each is lost only to somebody who collects within the same few microseconds.
constexpr int kNamesMax = 100;

// ".NAME.0123456789abcdef.tmp"
std::string prefix_of(const std::string& name) {
    return fmt::format(".{}.", name.substr(0, kNameBytesMax));
}

bool is_temporary(std::string_view name, std::string_view prefix) {
    if (name.size() != prefix.size() + kRandomDigits + kSuffix.size() ||
        !name.starts_with(prefix) || !name.ends_with(kSuffix)) {
        return false;
    }
    return name.substr(prefix.size(), kRandomDigits).find_first_not_of("0123456789abcdef") ==
           std::string_view::npos;
}

// Makes the file. Where there are no locks nobody removes what others left. Nothing: somebody who
// collects what is abandoned was there between its making and its locking, and will remove it.
std::optional<FileLock> lock_if_possible(const FileSystem& files, const std::string& path) {
    try {
        return files.lock(path);
    } catch (const Error& error) {
        const int number = error.system_errno();
        if (number == ENOLCK || number == ENOSYS || number == EOPNOTSUPP || number == EINVAL) {
            return FileLock();
        }
        if (number == EWOULDBLOCK) {
            return std::nullopt;
        }
        if (number == 0) {
            throw;
        }
        // Whoever saves did not ask for a lock: it is the file that cannot be had.
        base::raise(base::system_error(number, "open", path));
    }
}

bool is_there(const FileSystem& files, const std::string& path) {
    try {
        const FileKind kind = files.status(path).kind;
        if (kind != FileKind::kFile) {
            base::raise(base::error(ErrorCode::kInvalidArgument, "save",
                                    kind == FileKind::kFolder
                                        ? "it is a folder; give the path of a file in it"
                                        : "it is no regular file; give the path of one",
                                    path));
        }
        return true;
    } catch (const Error& error) {
        if (error.system_errno() != ENOENT) {
            throw;
        }
        return false;
    }
}

// Of "/a/b/file" whether "/a/b" is there.
bool has_folder(const FileSystem& files, const std::string& folder) {
    try {
        static_cast<void>(files.status(folder));
        return true;
    } catch (const Error& error) {
        return error.system_errno() != ENOENT;  // all else: as making the file says it
    }
}

}  // namespace

Replacement::Replacement(FileSystem files, const std::string& path)
    : files_(std::move(files)), target_(files_.resolve(path)) {
    const std::size_t slash = target_.rfind('/');
    folder_ = slash == 0 ? "/" : target_.substr(0, slash);
    const std::string name = target_.substr(slash + 1);
    const bool replaces = is_there(files_, target_);
    if (!replaces && !has_folder(files_, folder_)) {
        base::raise(base::system_error(ENOENT, "save into folder", folder_));
    }
    collect_abandoned(name);
    try {
        take_name(name);
        file_ = files_.open(temporary_, {.access = Access::kWrite, .create = true});
        if (replaces) {
            files_.take_attributes(target_, file_);
        }
    } catch (...) {
        give_up();
        throw;
    }
}

Replacement::~Replacement() {
    give_up();
}

// Locked before it is opened: without a lock it is somebody else's to remove. Making a file and
// locking it are two steps, and whoever collects may lock it between them; then the name is theirs.
// lock() sees to it that what is locked is what has the name.
void Replacement::take_name(const std::string& name) {
    for (int i = 0; i < kNamesMax; ++i) {
        temporary_ = fmt::format("{}/{}{:016x}{}", folder_ == "/" ? "" : folder_, prefix_of(name),
                                 base::random_bits(), kSuffix);
        pending_ = true;  // locking may make the file and fail all the same
        if (auto lock = lock_if_possible(files_, temporary_)) {
            lock_ = std::move(*lock);
            return;
        }
        pending_ = false;
    }
    base::raise(base::system_error(
        EWOULDBLOCK, "open", temporary_, kNoOffset,
        fmt::format("of {} new files beside the target, others hold the lock of each; find them "
                    "with 'fuser' on its folder",
                    kNamesMax)));
}

// Of saves of the same file that were killed: nobody holds their locks. A courtesy, so errors do
// not stop the save.
void Replacement::collect_abandoned(const std::string& name) noexcept {
    try {
        const std::vector<std::string> others = files_.list(folder_);
        for (const std::string& other : others) {
            if (!is_temporary(other, prefix_of(name))) {
                continue;
            }
            const std::string path = fmt::format("{}/{}", folder_ == "/" ? "" : folder_, other);
            try {
                const FileLock lock = files_.lock(path);
                files_.remove(path);
            } catch (const Error&) {  // somebody writes it, or it may not be removed
            }
        }
    } catch (const Error& error) {
        may_list_ = error.system_errno() != EACCES;
    } catch (const std::exception&) {  // no memory
    }
}

void Replacement::give_up() noexcept {
    if (!std::exchange(pending_, false)) {
        return;
    }
    try {
        files_.remove(temporary_);
        file_.close();
    } catch (const std::exception&) {  // what went wrong before is what the caller hears of
    }
}

void Replacement::commit() {
    file_.sync_data();
    if (may_list_) {
        file_.close();
    }
    files_.rename(temporary_, target_);
    pending_ = false;
    try {
        if (may_list_) {
            files_.sync_folder(folder_);
        } else {
            // Who may not list a folder cannot open it either. The file, which still is open, has
            // another way for its name; closing has nothing left that it could lose.
            file_.sync();
            file_.close();
        }
    } catch (const Error& error) {
        throw Error(error.reason(), error.system_errno(), error.operation(), error.path(),
                    error.offset(),
                    fmt::format("{}. '{}' is the new file already, but after a power cut the old "
                                "one, or none, may be there; save it again",
                                error.what(), target_));
    }
}

}  // namespace penstock::checkpoint
