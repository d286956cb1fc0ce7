// SPDX-License-Identifier: Apache-2.0
// A file that takes the place of another, or of none, whole and durable, or not at all:
//
//   1. the path is resolved: a symbolic link stays, what it leads to is replaced
//   2. its folder is opened: whatever the machine is short of, it can be synced after the rename
//   3. a new file in that folder, under a name of its own, locked; mode, owner, ACL and "user."
//      extended attributes of the old one
//   4. the caller writes it
//   5. commit: sync, close, rename over the target, sync of the folder
//
// Until the rename the old file is untouched; what is given up takes its temporary file along. What
// a killed process left of a save of the same file is removed by the next one: it has no lock. Any
// number may save under one name at once: who finds a file of its own locked takes another name.
// Of all these names only the target's may be a symbolic link; any other link is left alone.
#pragma once

#include <penstock/file.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::state {

/// What the temporary files of a file have in their names: the beginning of its own.
[[nodiscard]] std::string_view kept_in_temporary(std::string_view name);
/// That part of the name of a temporary file; empty for any other name.
[[nodiscard]] std::string_view named_by_temporary(std::string_view temporary);

/// Those that killed processes left of the same file.
enum class Abandoned : std::uint8_t { kRemove, kLeave };

class Replacement {
public:
    /// Throws Error: kInvalidArgument where `path` is there and no regular file.
    Replacement(FileSystem files, const std::string& path,
                Abandoned abandoned = Abandoned::kRemove);
    Replacement(const Replacement&) = delete;
    Replacement& operator=(const Replacement&) = delete;
    /// Without commit(): the temporary file is removed.
    ~Replacement();

    /// Open for writing, empty.
    [[nodiscard]] File& file() { return file_; }
    [[nodiscard]] const std::string& temporary() const { return temporary_; }
    [[nodiscard]] const std::string& target() const { return target_; }
    /// Throws Error. Then the target is as it was, but for an error of the folder's sync, which
    /// says so: the new file is there, and whether it survives a power cut is not known.
    void commit();
    /// Lets go of the temporary file, which stays: the next one of the same target removes it.
    void abandon() noexcept;
    /// Whether commit() came as far as the rename, also where it threw afterwards.
    [[nodiscard]] bool is_in_place() const noexcept { return !pending_; }

private:
    void take_name(const std::string& name);
    void collect_abandoned(const std::string& name) noexcept;
    void give_up() noexcept;

    FileSystem files_;
    std::string target_;
    std::string folder_;
    std::string temporary_;
    std::string temporary_name_;  ///< in the folder
    FileLock lock_;
    File file_;
    Folder open_folder_;    // not open where it may not be listed
    bool pending_ = false;  // there may be a temporary file
};

}  // namespace penstock::state
