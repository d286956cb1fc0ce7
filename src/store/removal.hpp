// SPDX-License-Identifier: Apache-2.0
// Removes checkpoints and their leftovers: renamed first, so that no reader takes a half-removed
// one for whole; then the content, the manifest last; then the parts in the other folders.
//
// A store deletes nothing but its own. Everything it removes lies directly in one of its folders,
// is a folder there, neither a symbolic link nor a mount, and carries the store's mark:
//
//   00000012-step-100/           a manifest.json
//   .unfinished-00000013-<hex>/  only names that a save makes, any of which may be missing: a save
//                                can be killed, or lose its power, at any moment
//   .removed-00000012-step-100/  either of the two above
//   00000012-step-100.<hex>/     in another folder: this store's digits, and only shards
//
// A folder with such a name and without such a mark is reported and left. Everything is done
// through open folders (FileSystem::open_folder), so that no other process can put a link in the
// way: a link inside is unlinked, and its target is not touched.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {

/// The shards of a checkpoint that lie in another of the store's folders lie in
/// "<checkpoint>.<16 digits that say which store><8 random digits>" there.
[[nodiscard]] std::string parts_name(std::string_view checkpoint, const std::string& store_folder,
                                     std::uint64_t random);

/// Empty, or why a name in a store's folder is no checkpoint of the store's own ("it is a symbolic
/// link"). Throws Error if that cannot be found out.
[[nodiscard]] std::string why_not_own(const Folder& store, const std::string& checkpoint);

struct OwnFolder;  // a folder that may be removed, or why not

class Remover {
public:
    /// `folders`: those of the store; the first has the manifests. All arguments outlive it.
    Remover(const FileSystem& files, const std::vector<std::string>& folders)
        : files_(files), folders_(folders) {}

    /// Removes checkpoints by name, whole or not. One that was pinned since stays. Returns the
    /// bytes freed.
    std::uint64_t remove(std::span<const std::string> checkpoints);
    /// Removes what killed processes left: unfinished and removed checkpoints, parts without one.
    /// Only for the holder of the store's lock.
    std::uint64_t collect();
    /// Removes a save that failed: its folder, under an unfinished or removed name, and its parts
    /// in the other folders, by their paths (empty: none there). Missing ones are no error.
    void take_away(std::string_view hidden, std::span<const std::string> parts);
    /// Reports of folders with a name of the store's that are not its own: "'<path>' was left:
    /// <why>".
    [[nodiscard]] const std::vector<std::string>& left() const { return left_; }

private:
    std::string hide(const Folder& store, const std::string& checkpoint);
    void leave(const Folder& parent, std::string_view name, std::string_view why);
    std::uint64_t take(const Folder& parent, const std::string& name, const OwnFolder& own);
    std::uint64_t remove_hidden(const Folder& store, const std::string& name);
    void report_foreign_parts(const Folder& checkpoint, const std::string& name);
    [[nodiscard]] std::vector<std::string> orphans(const Folder& store, const Folder& other) const;
    std::uint64_t take_parts(const Folder& other, const std::vector<std::string>& names);
    std::uint64_t collect_parts(const Folder& other, const std::vector<std::string>& names,
                                std::uint64_t generation_max);
    template <typename Call>
    std::uint64_t attempt(Call call);
    void end();

    const FileSystem& files_;
    const std::vector<std::string>& folders_;
    std::vector<std::string> left_;
    std::exception_ptr trouble_;  // the first error; the rest was tried all the same
};

}  // namespace penstock::store
