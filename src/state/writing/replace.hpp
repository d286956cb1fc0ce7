// SPDX-License-Identifier: Apache-2.0
// Replaces a file, or makes a new one, whole and durable, or not at all:
//
//   1. the path is resolved: a symbolic link stays, its target is replaced
//   2. its folder is opened: it can then be synced after the rename, even if descriptors run out
//   3. a new file in that folder, under a name of its own, locked; mode, owner, ACL and "user."
//      extended attributes of the old one
//   4. the caller writes it
//   5. commit: sync, close, rename over the target, sync of the folder
//   6. the log of an update of the old file that did not come to its end (update/update_log.hpp) is
//      removed: it is of no file any more
//
// Until the rename the old file is untouched; without commit() the temporary file is removed. The
// next save of the same file removes those of killed processes, which hold no locks. Any number may
// save under one name at once: a process that finds its own file locked takes another name. Only
// the target's name may be a symbolic link; any other link is left alone. A child of fork() leaves
// the temporary file to its parent.
#pragma once

#include <penstock/file.hpp>

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace penstock::state {

/// Gives the path back. Throws ENAMETOOLONG, with the cure, if its name is longer than names may
/// be.
[[nodiscard]] const std::string& with_possible_name(const std::string& path);

/// The part of a file's name that its temporary files have in their names: whole characters.
[[nodiscard]] std::string_view kept_in_temporary(std::string_view name);
/// That part of the name of a temporary file; empty for any other name.
[[nodiscard]] std::string_view named_by_temporary(std::string_view temporary);

/// Removes the temporary files that killed processes left of files with these names, where it can.
void remove_abandoned(const FileSystem& files, const std::string& folder,
                      std::span<const std::string> names) noexcept;

/// Temporary files that killed processes left of the same file.
enum class Abandoned : std::uint8_t { kRemove, kLeave };

class Replacement {
public:
    /// Throws Error: kInvalidArgument if `path` exists and is not a regular file.
    Replacement(FileSystem files, const std::string& path,
                Abandoned abandoned = Abandoned::kRemove);
    Replacement(const Replacement&) = delete;
    Replacement& operator=(const Replacement&) = delete;
    /// Removes the temporary file, unless commit() was called.
    ~Replacement();

    /// Open for writing, empty.
    [[nodiscard]] File& file() { return file_; }
    [[nodiscard]] const std::string& temporary() const { return temporary_; }
    [[nodiscard]] const std::string& target() const { return target_; }
    /// `sync`: durable when it returns. Throws Error. Then the target is unchanged, except
    /// after an error of the folder's sync, whose message says so: the new file is there, and it
    /// may not survive a power cut.
    /// `look` is called when the new file is durable, right before the rename; what it throws
    /// leaves the target as it is.
    void commit(bool sync = true, const std::function<void()>& look = {});
    /// Does the same under another name in the folder, which nothing has yet.
    void commit_as(const std::string& name, bool sync);
    /// An error of its file, or of commit(), with what to do where the file system cannot replace a
    /// file in this way (no rename, writes in order alone: object stores behind FUSE).
    [[nodiscard]] Error explained(const Error& error) const;
    /// Releases the temporary file, which stays: the next save of the same target removes it.
    void abandon() noexcept;
    /// False in a child of the process that made it: commit() throws kClosed there.
    [[nodiscard]] bool is_of_this_process() const noexcept;
    /// Whether commit() reached the rename, even if it threw afterwards.
    [[nodiscard]] bool is_in_place() const noexcept { return !pending_; }

private:
    void take_name(const std::string& name);
    void collect_abandoned(const std::string& name) noexcept;
    void give_up() noexcept;
    void remove_update(bool sync) noexcept;

    pid_t process_;
    FileSystem files_;
    std::string target_;
    std::string folder_;
    std::string temporary_;
    std::string temporary_name_;  ///< in the folder
    std::string file_system_;     ///< its name
    FileLock lock_;
    File file_;
    Folder open_folder_;    // not open if it may not be listed
    bool pending_ = false;  // there may be a temporary file
};

}  // namespace penstock::state
