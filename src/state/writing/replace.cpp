// SPDX-License-Identifier: Apache-2.0
#include "state/writing/replace.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/random.hpp"
#include "state/update/update_log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::state {

namespace {

constexpr std::size_t kOldNameBytesMax = 200;  // of the old name in the temporary one: 255 in all
constexpr std::size_t kRandomDigits = 16;
constexpr std::string_view kSuffix = ".tmp";
// A list of a larger folder takes longer than a small save. It is made again after a hundred times
// as long as it took, but not much later where something else delayed it.
constexpr std::size_t kSmallFolder = 256;
constexpr int kPauseFactor = 100;
constexpr std::int64_t kPauseMaxNs = 10'000'000'000;
// A name is lost only to a process that collects within the same few microseconds.
constexpr int kNamesMax = 100;

// ".NAME.0123456789abcdef.tmp"
std::string temporary_of(std::string_view name) {
    return fmt::format(".{}.{:016x}{}", kept_in_temporary(name), base::random_bits(), kSuffix);
}

[[noreturn]] void refuse_long_temporary(const std::string& path, const std::string& target) {
    const std::size_t bytes = base::last_name(path).size();
    base::raise(base::system_error(
        ENAMETOOLONG, "save", target, kNoOffset,
        fmt::format("while it is written it has a temporary name of {} bytes, '{}', which is more "
                    "than this file system takes; give it a name that is {} bytes shorter",
                    bytes, base::last_name(path), bytes - base::last_name(target).size())));
}

// Makes the file. Without locks no process removes leftovers of others. Nothing: a process that
// collects abandoned files came between its making and its locking, and will remove it.
std::optional<FileLock> lock_if_possible(const FileSystem& files, const std::string& path,
                                         const std::string& target) {
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
        if (number == ENAMETOOLONG &&
            base::last_name(path).size() > base::last_name(target).size()) {
            refuse_long_temporary(path, target);
        }
        // Names the file that was asked for: the caller did not ask for a lock, or a temporary
        // file.
        base::raise(base::system_error(number, "save", target));
    }
}

// Errors that say that a file system cannot do a thing at all. EPERM and EINVAL have other causes
// on a local disk.
bool is_refused_by_kind(int number, std::string_view file_system) {
    constexpr std::array<std::string_view, 10> kLocal{
        "ext4", "xfs", "btrfs", "overlay", "f2fs", "vfat", "zfs", "tmpfs", "exfat", "bcachefs"};
    if (number == EPERM || number == EINVAL) {
        return std::find(kLocal.begin(), kLocal.end(), file_system) == kLocal.end();
    }
    return number == ENOSYS || number == EOPNOTSUPP || number == EXDEV;
}

bool is_there_to_replace(const FileSystem& files, const std::string& path) {
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

// Whether "/a/b" exists, for "/a/b/file".
bool has_folder(const FileSystem& files, const std::string& folder) {
    try {
        static_cast<void>(files.status(folder));
        return true;
    } catch (const Error& error) {
        return error.system_errno() != ENOENT;  // other errors are reported when the file is made
    }
}

// A process that may not list a folder cannot open it either.
Folder open_if_allowed(const FileSystem& files, const std::string& path) {
    try {
        return files.open_folder(path);
    } catch (const Error& error) {
        if (error.system_errno() != EACCES) {
            throw;
        }
        return {};
    }
}

// The time before which a large folder is not listed again, by the hash of its path. Folders that
// share a place are listed less often.
std::atomic<std::int64_t>& pause_of(const std::string& folder) {
    static std::array<std::atomic<std::int64_t>, 64> pauses{};
    return pauses[std::hash<std::string>()(folder) % pauses.size()];
}

// Only a regular file has a lock and can be of a save.
void remove_abandoned(const FileSystem& files, const Folder& open, const std::string& folder,
                      const std::string& name) noexcept {
    try {
        const FileLock lock = files.lock(base::join(folder, name), false);
        open.remove(name);
    } catch (const std::exception&) {  // in use, or it may not be removed
    }
}

std::int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

const std::string& with_possible_name(const std::string& path) {
    const std::size_t bytes = base::last_name(path).size();
    if (bytes > base::kNameBytesMax) {
        base::raise(base::system_error(
            ENAMETOOLONG, "save", path, kNoOffset,
            fmt::format("its name has {} bytes, and a name has at most {}; give it a shorter one",
                        bytes, base::kNameBytesMax)));
    }
    return path;
}

std::string_view kept_in_temporary(std::string_view name) {
    if (name.size() <= kOldNameBytesMax) {
        return name;
    }
    // Some file systems refuse half a character.
    constexpr unsigned kContinues = 0x80;
    constexpr unsigned kContinuesMask = 0xC0;
    std::size_t bytes = kOldNameBytesMax;
    while (bytes > 0 && (static_cast<unsigned char>(name[bytes]) & kContinuesMask) == kContinues) {
        --bytes;
    }
    return name.substr(0, bytes != 0 ? bytes : kOldNameBytesMax);
}

std::string_view named_by_temporary(std::string_view temporary) {
    constexpr std::size_t kAround = 2 + kRandomDigits + kSuffix.size();  // and two dots
    if (temporary.size() <= kAround || temporary.front() != '.' || !temporary.ends_with(kSuffix)) {
        return {};
    }
    const std::string_view name = temporary.substr(1, temporary.size() - kAround);
    const std::string_view random = temporary.substr(name.size() + 1, 1 + kRandomDigits);
    const bool fits = random.front() == '.' &&
                      random.find_first_not_of("0123456789abcdef", 1) == std::string_view::npos;
    return fits ? name : std::string_view();
}

void remove_abandoned(const FileSystem& files, const std::string& folder,
                      std::span<const std::string> names) noexcept {
    try {
        std::set<std::string_view> kept;
        for (const std::string& name : names) {
            kept.insert(kept_in_temporary(name));
        }
        const Folder open = files.open_folder(folder);
        for (const std::string& other : open.list()) {
            if (kept.contains(named_by_temporary(other))) {
                remove_abandoned(files, open, folder, other);
            }
        }
    } catch (const std::exception&) {  // it cannot be listed, or there is no memory
    }
}

Replacement::Replacement(FileSystem files, const std::string& path, Abandoned abandoned)
    : process_(::getpid()),
      files_(std::move(files)),
      target_(files_.resolve(with_possible_name(path))) {
    folder_ = base::folder_of(target_);
    const std::string name(base::last_name(target_));
    const bool replaces = is_there_to_replace(files_, target_);
    if (path.ends_with('/')) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "save",
                                "the path of a folder ends in '/'; give the path of a file", path));
    }
    if (!replaces && !has_folder(files_, folder_)) {
        base::raise(base::system_error(ENOENT, "save into folder", folder_));
    }
    open_folder_ = open_if_allowed(files_, folder_);
    if (abandoned == Abandoned::kRemove) {
        collect_abandoned(name);
    }
    try {
        take_name(name);
        file_ =
            files_.open(temporary_, {.access = Access::kWrite, .create = true, .follow = false});
        file_system_ = file_.info().file_system;
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

// Locked before it is opened: without a lock another process may remove it. Making a file and
// locking it are two steps, and a collecting process may lock it in between; then the name belongs
// to that. lock() ensures that the locked file is the one with the name.
void Replacement::take_name(const std::string& name) {
    for (int i = 0; i < kNamesMax; ++i) {
        temporary_name_ = temporary_of(name);
        temporary_ = fmt::format("{}/{}", folder_ == "/" ? "" : folder_, temporary_name_);
        pending_ = true;  // locking may make the file and fail all the same
        if (auto lock = lock_if_possible(files_, temporary_, target_)) {
            lock_ = std::move(*lock);
            return;
        }
        pending_ = false;
    }
    base::raise(base::system_error(
        EWOULDBLOCK, "open", temporary_, kNoOffset,
        fmt::format("could not lock any of {} temporary files next to the target; another process "
                    "holds them (see 'fuser' on the folder)",
                    kNamesMax)));
}

// Removes files of killed saves of the same file: their locks are free. Optional, so errors do not
// stop the save.
void Replacement::collect_abandoned(const std::string& name) noexcept {
    std::atomic<std::int64_t>& pause = pause_of(folder_);
    const std::int64_t begin = now_ns();
    if (!open_folder_.is_open() || begin < pause.load()) {
        return;
    }
    try {
        const std::string log = name + std::string(kUpdateSuffix);
        const std::vector<std::string> others = open_folder_.list();
        if (others.size() > kSmallFolder) {
            const std::int64_t end = now_ns();
            pause.store(end + std::min(kPauseFactor * (end - begin), kPauseMaxNs));
        }
        for (const std::string& other : others) {
            const std::string_view of = named_by_temporary(other);
            if (of == kept_in_temporary(name) || of == kept_in_temporary(log)) {
                remove_abandoned(files_, open_folder_, folder_, other);
            }
        }
    } catch (const std::exception&) {  // it cannot be listed, or there is no memory
    }
}

void Replacement::give_up() noexcept {
    if (!std::exchange(pending_, false) || !is_of_this_process()) {
        return;
    }
    try {
        if (open_folder_.is_open()) {
            open_folder_.remove(temporary_name_);  // a name made before: memory may have run out
        } else {
            files_.remove(temporary_);
        }
        file_.close();
    } catch (const std::exception&) {  // the caller gets the earlier error
    }
}

void Replacement::abandon() noexcept {
    pending_ = false;
    lock_ = {};
}

bool Replacement::is_of_this_process() const noexcept {
    return process_ == ::getpid();
}

Error Replacement::explained(const Error& error) const {
    if (!is_refused_by_kind(error.system_errno(), file_system_)) {
        return error;
    }
    return {error.reason(),
            error.system_errno(),
            error.operation(),
            error.path(),
            error.offset(),
            fmt::format("{}. This file system ({}) cannot replace a file as a whole: that takes "
                        "writes at any place of a new file, and then a rename. '{}' is as it was. "
                        "Save to a local disk and copy the file; or save into a file that you "
                        "open: with open(path, \"wb\") as file: penstock.save(state, file). "
                        "That is not synced, and a save that fails leaves a part of the file",
                        error.what(), file_system_, target_)};
}

void Replacement::commit_as(const std::string& name, bool sync) {
    target_ = base::join(folder_, name);
    commit(sync);
}

void Replacement::commit(bool sync, const std::function<void()>& look) {
    if (!is_of_this_process()) {
        base::raise(base::error(ErrorCode::kClosed, "save",
                                "the process that began to write this file goes on with it; a "
                                "child of fork() can only write files that it begins itself",
                                target_));
    }
    if (sync) {
        file_.sync_data();
    }
    if (look) {
        look();
    }
    try {
        if (open_folder_.is_open()) {
            file_.close();
            open_folder_.rename(temporary_name_, std::string(base::last_name(target_)));
        } else {
            files_.rename(temporary_, target_);
        }
    } catch (const Error& error) {
        throw explained(error);
    }
    pending_ = false;
    if (!sync) {
        file_.close();
        remove_update(false);
        return;
    }
    try {
        if (open_folder_.is_open()) {
            open_folder_.sync();
        } else {
            // The open file can sync its name, too; closing it then cannot lose anything.
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
    remove_update(true);
}

// After the name of the new file is durable: the old file may need its log. What stays does not fit
// the new file, or gives back the update of the old one.
void Replacement::remove_update(bool sync) noexcept {
    try {
        const std::string log = target_ + std::string(kUpdateSuffix);
        if (target_.ends_with(kUpdateSuffix)) {
            return;
        }
        const std::optional<FileStatus> status = files_.find(log);
        // Any other file of that name is the user's.
        if (!status || status->kind != FileKind::kFile || !files_.begins_with(log, kUpdateMagic)) {
            return;
        }
        files_.remove(log);
        if (sync) {
            files_.sync_folder(folder_);
        }
    } catch (const std::exception&) {  // the file is saved
    }
}

}  // namespace penstock::state
