// SPDX-License-Identifier: Apache-2.0
// How checkpoints and what is left of them go: renamed first, so that nobody takes a half-removed
// one for whole; then what is in it, the manifest last; then what lies in the other folders.
//
// A store deletes nothing but its own. What it removes lies directly in one of its folders, is a
// folder there, neither a symbolic link nor a mount, and carries the store's mark:
//
//   00000012-step-100/           a manifest.json
//   .unfinished-00000013-<hex>/  no name but those that a save makes, of which any may be missing:
//   a
//                                save can be killed, or lose its power, at any moment
//   .removed-00000012-step-100/  the one or the other
//   00000012-step-100.<hex>/     in another folder: this store's digits, and only shards
//
// What has such a name and no such mark is reported and left. Everything is done through open
// folders (FileSystem::open_folder), so that nobody can put a link in the way meanwhile: a link
// inside is unlinked, and what it leads to is not touched.
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
/// link"). Throws Error where that cannot be found out.
[[nodiscard]] std::string why_not_own(const Folder& store, const std::string& checkpoint);

struct OwnFolder;  // a folder that may go, or why not

class Remover {
public:
    /// folders: of the store, the first has the manifests. All outlive it.
    Remover(const FileSystem& files, const std::vector<std::string>& folders)
        : files_(files), folders_(folders) {}

    /// Checkpoints by their names, whole or not. One that was pinned meanwhile stays. Bytes freed.
    std::uint64_t remove(std::span<const std::string> checkpoints);
    /// What killed processes left: unfinished and removed ones, parts that no checkpoint has. Only
    /// for who holds the store's lock.
    std::uint64_t collect();
    /// A save that failed: its folder, under an unfinished or removed name, and its parts in the
    /// other folders, by their paths (empty: none there). What is not there is fine.
    void take_away(std::string_view hidden, std::span<const std::string> parts);
    /// What has a name of the store's, is not its own, and was left: "'<path>' was left: <why>".
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
    std::exception_ptr trouble_;  // the first; the rest was tried all the same
};

}  // namespace penstock::store
