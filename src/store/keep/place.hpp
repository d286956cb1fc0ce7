// SPDX-License-Identifier: Apache-2.0
// The place of a store of one checkpoint: a path, at which each save puts a whole folder.
//
//   <folder>/<name>                  the checkpoint
//   <folder>/.penstock-<letters>/    only while a save runs, or after one was killed: the lock, and
//                                    the folder that is written. The letters are a hash of the name
//
// The commit is one exchange of two names (FileSystem::exchange), or a rename where nothing is at
// the path. Then the older folder is in the work folder, and what it is made of goes.
//
// Files of others in the older folder stay. They are linked into the new one before the
// commit; what cannot be linked (folders, symbolic links) is moved right before it. Removed are
// only the files that the older manifest names, those that only a save makes, and those of a
// checkpoint of torch's own ("__0_0.distcp" next to a ".metadata"). Anything unsure is refused
// before something is written.
//
// A save that was killed leaves the work folder. The next one to that path finishes it.
#pragma once

#include "store/keep/store_lock.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {

/// The path of the work folder of a place.
[[nodiscard]] std::string work_folder_of(const std::string& path);

class CheckpointPlace {
public:
    /// `path`: absolute, without symbolic links. Engine and files outlive it.
    CheckpointPlace(Engine& engine, const FileSystem& files, std::string path);
    CheckpointPlace(const CheckpointPlace&) = delete;
    CheckpointPlace& operator=(const CheckpointPlace&) = delete;
    ~CheckpointPlace() = default;

    [[nodiscard]] const std::string& path() const { return path_; }
    /// The folder that has the path's name.
    [[nodiscard]] const std::string& parent() const { return parent_; }
    [[nodiscard]] const std::string& work() const { return work_; }

    /// Makes the work folder, and takes its lock. The holder alone calls what follows.
    [[nodiscard]] StoreLock lock(std::uint32_t wait_ms) const;
    /// Finishes what an earlier save left, and returns the generation of the next one. Throws
    /// kInvalidArgument where the path holds what may not be replaced.
    [[nodiscard]] std::uint64_t begin();
    /// Gives an empty folder that will be put here the permissions of the one that is here.
    void permit(const std::string& unfinished) const;
    /// Links the files of others into the folder that will be put here, and moves what cannot be
    /// linked. Throws Error if that cannot be moved, either; settle() then brings back the rest.
    void carry(const std::string& unfinished);
    /// Puts an unfinished folder here. The caller makes the names durable.
    void put(const std::string& unfinished);
    /// Undoes put().
    void take_back(const std::string& unfinished);
    /// Removes all that is in the work folder but the lock; what others have in it moves to the
    /// path. What stays is in left().
    void settle();
    /// Removes the work folder, if nothing is in it but the lock.
    void leave() noexcept;
    /// Reports for the caller, since begin().
    [[nodiscard]] const std::vector<std::string>& left() const { return left_; }

private:
    enum class Put : std::uint8_t { kNothing, kRenamed, kExchanged, kAside };

    [[nodiscard]] std::uint64_t check_what_is_there() const;
    [[nodiscard]] std::uint64_t check_manifest_there() const;
    [[nodiscard]] std::set<std::string> own_names(const Folder& folder, bool is_work) const;
    [[nodiscard]] bool link(const std::string& name, const std::string& unfinished) const;
    void move(const std::string& name, const std::string& unfinished) const;
    void put_back(const Folder& work);
    void sync_names() const;
    void clear(const Folder& work, const std::string& name);
    bool give(const Folder& from, const std::string& name, const std::string& to);
    bool give_all(const Folder& from, const std::string& to);
    void leave_it(const std::string& path, std::string_view why);

    Engine& engine_;
    const FileSystem& files_;
    const std::string path_;
    const std::string parent_;
    const std::string work_;
    const std::string aside_;
    Put put_ = Put::kNothing;
    std::map<std::string, std::uint64_t> carried_;  // inodes of what carry() linked
    std::vector<std::string> left_;
};

}  // namespace penstock::store
