// SPDX-License-Identifier: Apache-2.0
// Removes checkpoints and their leftovers: renamed first, so that no reader takes a half-removed
// one for whole; then the content, the manifest last; then the parts in the other folders.
//
// A store deletes nothing but its own. Everything it removes lies directly in one of its folders,
// is a folder there, neither a symbolic link nor a mount, and is known as this store's:
//
//   00000012-step-100/           its manifest has this store's identity (or, of an earlier version,
//                                none)
//   .unfinished-00000013-<hex>/  only names that a save makes, any of which may be missing: a save
//                                can be killed, or lose its power, at any moment
//   .removed-00000012-step-100/  either of the two above
//   00000012-step-100.<hex>/     in another folder, named by the manifest of a checkpoint here that
//                                goes: this store's identity, whose record there is this store's
//                                last one (identity/ownership.hpp), and only shards. Those of
//                                earlier versions have a hash of the first folder's path in place
//                                of the identity
//   .unfinished-00000012-step-100.<hex>/
//                                the same, of a save that was killed: no manifest names it yet
//
// Shards with their final name that no manifest here names are those of a checkpoint that was moved
// elsewhere, or removed by hand. They are reported and left. So are those that links of another
// folder here lead to, whatever its name: a checkpoint that was copied by hand.
//
// Anything of another identity, or of one that cannot be read, is reported and left. All is done
// through open folders (FileSystem::open_folder), so that no other process can put a link in the
// way: a link inside is unlinked, and its target is not touched.
#pragma once

#include "store/identity/ownership.hpp"
#include "store/manifest/manifest.hpp"
#include "store/stuck/stuck_removals.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {

/// Empty, or why a name in a store's folder is no checkpoint of the store's own ("it is a symbolic
/// link"). Throws Error if that cannot be found out.
[[nodiscard]] std::string why_not_own(const Folder& store, const std::string& checkpoint);

struct OwnFolder;  // a folder that may be removed, or why not

class Remover {
public:
    /// `folders`: those of the store; the first has the manifests. `owner`: after its begin().
    /// `stuck`: for the removals of a save; one that fails is noted there and in left(), and others
    /// run. Without it the first error is thrown when all others have been tried. All arguments
    /// outlive it.
    Remover(Engine& engine, const FileSystem& files, const std::vector<std::string>& folders,
            const Ownership& owner, StuckRemovals* stuck = nullptr)
        : engine_(engine), files_(files), folders_(folders), owner_(owner), stuck_(stuck) {}

    /// Removes checkpoints by name, whole or not. One that was pinned since stays. Returns the
    /// bytes freed.
    std::uint64_t remove(std::span<const std::string> checkpoints);
    /// Removes what killed processes left: unfinished and removed checkpoints, parts without one.
    /// Only for the holder of the store's lock.
    std::uint64_t collect();
    /// Removes a save that failed: its folder, under an unfinished or removed name, and its parts
    /// in the other folders, by their final paths (empty: none there). Missing ones are no error.
    void take_away(std::string_view hidden, std::span<const std::string> parts);
    /// Reports of folders with a name of the store's that are not its own ("'<path>' was left:
    /// <why>"), or that could not be removed.
    [[nodiscard]] const std::vector<std::string>& left() const { return left_; }

private:
    struct ReadManifest {
        std::optional<Manifest> manifest;  // only in a store of several folders
        std::string why;                   // empty: it is this store's
        bool is_foreign = false;           // it is known as another store's
    };
    [[nodiscard]] ReadManifest look_into(const std::string& checkpoint) const;
    [[nodiscard]] OwnFolder own_leftover(const Folder& parent, const std::string& name,
                                         std::optional<Manifest>& manifest) const;
    [[nodiscard]] OwnFolder own_parts(std::size_t folder, const Folder& parent,
                                      const std::string& name, bool is_named) const;
    std::string hide(const Folder& store, const std::string& checkpoint);
    void leave(const Folder& parent, std::string_view name, std::string_view why);
    std::uint64_t take(const Folder& parent, const std::string& name, const OwnFolder& own,
                       bool but_manifest = false);
    std::uint64_t remove_hidden(const Folder& store, const std::string& name);
    [[nodiscard]] bool has_parts_alone(const Folder& store, const std::string& hidden,
                                       const std::string& checkpoint, const Manifest& manifest,
                                       const std::string& parts) const;
    [[nodiscard]] bool is_copied(const Folder& store, const std::string& hidden,
                                 const Manifest& manifest, const std::string& parts) const;
    bool take_named_parts(const Folder& store, const std::string& hidden, const Manifest& manifest,
                          std::uint64_t& freed);
    bool keep_pinned(const Folder& store, const std::string& name);
    void report_foreign_parts(const Folder& checkpoint, const std::string& name);
    void report_other_stores(const Folder& other, std::span<const std::string> names);
    void report_moved(const Folder& other, std::span<const std::string> names);
    std::uint64_t collect_parts(const Folder& store, std::size_t folder);
    [[nodiscard]] std::uint64_t held_bytes(const std::string& path) const;
    template <typename Call>
    std::uint64_t attempt(const std::string& path, Call call);
    void end();

    Engine& engine_;
    const FileSystem& files_;
    const std::vector<std::string>& folders_;
    const Ownership& owner_;
    StuckRemovals* stuck_;
    std::vector<std::string> left_;
    std::set<std::string> going_;  // renamed by remove(), and no pin was there
    std::exception_ptr trouble_;   // the first error; the rest was tried all the same
};

}  // namespace penstock::store
