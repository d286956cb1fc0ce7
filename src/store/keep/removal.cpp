// SPDX-License-Identifier: Apache-2.0
#include "store/keep/removal.hpp"

#include "base/assert.hpp"
#include "base/path.hpp"
#include "base/planted.hpp"
#include "base/raise.hpp"
#include "base/text/hex.hpp"
#include "store/identity/parts_name.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/stock_index.hpp"
#include "store/stuck/folder_content.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>

namespace penstock::store {

struct OwnFolder {
    Folder folder;
    std::string why;           // empty: it may be removed
    bool is_missing = false;   // nothing is there
    bool is_verified = false;  // its identity was compared with the store's
};

namespace {

constexpr int kHiddenMax = 100;  // names of one checkpoint that is removed, and was again

// The digits that earlier versions had in place of the identity.
std::string path_digits(const std::string& store_folder) {
    std::string digits;
    base::append_hex(digits, stream::content_hash(std::as_bytes(std::span(store_folder))));
    return digits;
}

bool is_of(const PartsName& parts, const std::string& identity) {
    return parts.identity == identity || base::planted("foreign_parts");
}

bool is_missing(const Error& error) {
    return error.system_errno() == ENOENT;
}

Folder open_if_there(const FileSystem& files, const std::string& path) {
    try {
        return files.open_folder(path);
    } catch (const Error& error) {
        if (is_missing(error)) {
            return {};
        }
        throw;
    }
}

bool is_file(const Folder& folder, std::string_view name) {
    const auto status = status_of(folder, std::string(name));
    return status && status->kind == FileKind::kFile;
}

// Names that a save makes in the folder of a checkpoint.
bool is_name_of_a_save(std::string_view name) {
    return name == kManifestName || name == format::kShardIndexName || name == kPinnedName ||
           is_shard_name(name) || is_share_name(name);
}

// Whether a save or a removal of that checkpoint makes this name. A copy of it has another.
bool is_hidden_name_of(const std::string& hidden, const std::string& checkpoint) {
    const std::string removed = removed_name(checkpoint);
    return hidden.starts_with(kUnfinishedPrefix)
               ? hidden_generation(hidden) == parse_checkpoint_name(checkpoint)->generation
               : hidden == removed || hidden.starts_with(removed + "-");
}

OwnFolder not_own(std::string why) {
    return {.folder = {}, .why = std::move(why)};
}

// Opens a folder, directly in its parent.
OwnFolder look(const Folder& parent, const std::string& name) {
    const auto status = status_of(parent, name);
    if (!status) {
        return {.folder = {}, .why = "there is nothing of that name", .is_missing = true};
    }
    if (status->kind != FileKind::kFolder) {
        return not_own(status->kind == FileKind::kSymbolicLink ? "it is a symbolic link"
                                                               : "it is no folder");
    }
    try {
        return {.folder = parent.open_folder(name), .why = {}};
    } catch (const Error& error) {
        switch (error.system_errno()) {
            case EXDEV:
                return not_own("another file system is mounted there");
            case ENOTDIR:
            case ELOOP:
                return not_own("it became a symbolic link, or a file, meanwhile");
            default:
                throw;
        }
    }
}

// Empty, or which name no save makes.
std::string made_by_no_save(const Folder& folder) {
    for (const std::string& inside : folder.list()) {
        if (!is_name_of_a_save(inside)) {
            return fmt::format("it holds '{}', which no save makes", inside);
        }
    }
    return {};
}

}  // namespace

std::string why_not_own(const Folder& store, const std::string& checkpoint) {
    const OwnFolder own = look(store, checkpoint);
    return !own.why.empty() || is_file(own.folder, kManifestName)
               ? own.why
               : fmt::format("it holds no {}", kManifestName);
}

// Looks whose a checkpoint in the first folder is. Throws errors that are not about its manifest.
Remover::ReadManifest Remover::look_into(const std::string& checkpoint) const {
    ReadManifest out;
    const std::string path = join(folders_.front(), checkpoint);
    try {
        const std::string text = read_manifest_text(engine_, files_, path);
        const std::string identity = identity_in(text, join(path, kManifestName));
        if (!owner_.is_own(identity)) {
            out.why = fmt::format("another store saved it ({}); delete it yourself", identity);
            out.is_foreign = true;
        } else if (folders_.size() > 1) {
            out.manifest = parse_manifest(text, join(path, kManifestName));
        }
    } catch (const Error& error) {
        const int number = error.system_errno();
        if (!error.is_about_the_file() || (number != 0 && number != ENOENT && number != ENOTDIR)) {
            throw;  // a device that fails says nothing of the manifest
        }
        out.why = fmt::format(
            "its manifest cannot be read, so it is not known which store saved it ({}); delete it "
            "yourself",
            error.what());
        out.manifest.reset();
    }
    return out;
}

// Opens a leftover of a removal or a save. `manifest`: its own, if it has one that is needed.
OwnFolder Remover::own_leftover(const Folder& parent, const std::string& name,
                                std::optional<Manifest>& manifest) const {
    OwnFolder own = look(parent, name);
    if (!own.why.empty()) {
        return own;
    }
    if (is_file(own.folder, kManifestName)) {
        ReadManifest read = look_into(name);
        if (read.is_foreign) {
            return not_own(std::move(read.why));
        }
        manifest = std::move(read.manifest);
        own.is_verified = read.why.empty() && name.starts_with(kRemovedPrefix);
    }
    if (!own.is_verified) {
        // A killed save may have written half a manifest, or none; only a save makes such names.
        own.why = made_by_no_save(own.folder);
        own.is_verified = own.why.empty();
    }
    return own;
}

// Shards in another folder. `is_named`: by a manifest here, or by the save that this is a part of.
OwnFolder Remover::own_parts(std::size_t folder, const Folder& parent, const std::string& name,
                             bool is_named) const {
    OwnFolder own = look(parent, name);
    if (!own.why.empty()) {
        return own;
    }
    const PartsName parts = split_parts(name);
    const bool is_mine = is_of(parts, owner_.identity());
    const bool is_earlier = parts.path_digits == path_digits(folders_.front());
    const bool may_go = is_named || parts.is_unfinished || base::planted("moved_checkpoint");
    PENSTOCK_ASSERT(may_go);
    if (parts.checkpoint.empty() || (!is_mine && !is_earlier)) {
        return not_own(
            "it is not known as this store's (was the store moved, copied or restored, "
            "or opened without that folder?); delete it yourself when no checkpoint "
            "leads there");
    }
    if (!owner_.holds(folder)) {
        return not_own(fmt::format(
            "'{}' is not this store's last record there (another copy of the store saved, or the "
            "record is lost); delete it yourself when no checkpoint leads there",
            join(parent.path(), record_name(owner_.identity()))));
    }
    for (const std::string& inside : own.folder.list()) {
        if (!is_shard_name(inside) || !is_file(own.folder, inside)) {
            return not_own(fmt::format("it holds '{}', which is no shard", inside));
        }
    }
    own.is_verified = true;
    return own;
}

void Remover::leave(const Folder& parent, std::string_view name, std::string_view why) {
    left_.push_back(fmt::format("'{}' was left: {}", join(parent.path(), name), why));
}

// Removes a folder, with its manifest last; `but_manifest`: it and the folder stay.
std::uint64_t Remover::take(const Folder& parent, const std::string& name, const OwnFolder& own,
                            bool but_manifest) {
    if (!own.why.empty()) {
        if (!own.is_missing) {
            leave(parent, name, own.why);
        }
        return 0;
    }
    PENSTOCK_ASSERT(own.is_verified);  // all that a store removes is removed in the next line
    std::uint64_t freed = remove_content(own.folder, kManifestName);
    if (!but_manifest) {
        freed += remove_content(own.folder);
        parent.remove_folder(name);
    }
    return freed;
}

// Bytes of one folder of a checkpoint on disk; 0 where they cannot be found out.
std::uint64_t Remover::held_bytes(const std::string& path) const {
    try {
        const bool is_whole_folder =
            std::find(folders_.begin(), folders_.end(), path) != folders_.end();
        return is_whole_folder ? 0 : bytes_in(files_.open_folder(path));
    } catch (const Error&) {  // only a message
        return 0;
    }
}

// Runs one removal; its failure does not keep others from running.
template <typename Call>
std::uint64_t Remover::attempt(const std::string& path, Call call) {
    if (stuck_ != nullptr && !stuck_->is_due(path)) {
        return 0;
    }
    try {
        const std::uint64_t freed = call();
        if (stuck_ != nullptr) {
            stuck_->went(path);
        }
        return freed;
    } catch (const Error& error) {
        if (stuck_ == nullptr) {
            trouble_ = trouble_ ? trouble_ : std::current_exception();
        } else if (std::string report = stuck_->failed(path, error, held_bytes(path));
                   !report.empty()) {
            left_.push_back(std::move(report));
        }
        return 0;
    }
}

void Remover::end() {
    if (trouble_) {
        std::rethrow_exception(std::exchange(trouble_, nullptr));
    }
}

// Reports shards that links of a checkpoint lead to, and that stay when it goes: their place or
// name is not one of this store's.
void Remover::report_foreign_parts(const Folder& checkpoint, const std::string& name) {
    std::set<std::string> seen;
    for (const std::string& file : checkpoint.list()) {
        const auto status = status_of(checkpoint, file);
        if (!status || status->kind != FileKind::kSymbolicLink || !is_shard_name(file)) {
            continue;
        }
        const std::string target = files_.resolve(join(join(folders_.front(), name), file));
        const std::string folder = base::folder_of(target);
        if (is_there(files_, target) && seen.insert(folder).second) {
            left_.push_back(fmt::format(
                "'{}' was left: links of '{}' lead there, and it is not known as its own (was the "
                "checkpoint copied or renamed? was the store moved, copied or restored, or opened "
                "without that folder?); delete it yourself when no other checkpoint leads there",
                folder, name));
        }
    }
}

// Whether the shards that a manifest names are those of the folder that it lies in. A copy under
// another name shares them with its original, wherever that is by now. So does one that cannot be
// removed, when its copy has come back under its name.
bool Remover::has_parts_alone(const Folder& store, const std::string& hidden,
                              const std::string& checkpoint, const Manifest& manifest,
                              const std::string& parts) const {
    if (!is_hidden_name_of(hidden, checkpoint) ||
        (is_copied(store, hidden, manifest, parts) && !base::planted("copied_checkpoint"))) {
        return false;
    }
    if (!status_of(store, checkpoint)) {
        return true;
    }
    try {
        const auto folders = read_manifest(engine_, files_, join(store.path(), checkpoint)).folders;
        return std::find(folders.begin(), folders.end(), parts) == folders.end();
    } catch (const Error&) {  // it may name them
        return false;
    }
}

// Whether links of another folder here lead to shards of the manifest: a copy, whatever its name.
// One link is asked for: those of a checkpoint lead to its own shards, or all to those of its
// original. What goes as well does not count.
bool Remover::is_copied(const Folder& store, const std::string& hidden, const Manifest& manifest,
                        const std::string& parts) const {
    const auto shard =
        std::find_if(manifest.shards.begin(), manifest.shards.end(), [&](const Shard& one) {
            return one.folder != 0 && manifest.folders.at(one.folder) == parts;
        });
    if (shard == manifest.shards.end()) {
        return false;
    }
    // Its disk may have moved since the store was opened, with a link in its old place.
    const std::string there = files_.resolve(join(parts, shard->file));
    const std::vector<std::string> names = store.list();
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        const std::string path = join(store.path(), name);
        try {
            return name != hidden && !going_.contains(name) &&
                   (!hidden_generation(name) || is_there(files_, join(path, kPinnedName))) &&
                   files_.resolve(join(path, shard->file)) == there;
        } catch (const Error&) {  // a folder without permission, or a loop of links
            return false;
        }
    });
}

// Removes the shards of a checkpoint in other folders, durably. What is not this store's stays, and
// is reported by its links, as what a copy shares with its original. False: some of its own are
// still there.
bool Remover::take_named_parts(const Folder& store, const std::string& hidden,
                               const Manifest& manifest, std::uint64_t& freed) {
    bool is_done = true;
    const std::string checkpoint = checkpoint_name(manifest.generation, manifest.step);
    for (const std::string& path : manifest.folders) {
        const auto base = std::find(folders_.begin() + 1, folders_.end(), base::folder_of(path));
        const std::string name(base::last_name(path));
        if (base == folders_.end() || split_parts(name).checkpoint != checkpoint ||
            !has_parts_alone(store, hidden, checkpoint, manifest, path)) {
            continue;
        }
        const Folder other = open_if_there(files_, *base);
        if (!other.is_open()) {
            is_done = false;
            continue;
        }
        const auto folder = static_cast<std::size_t>(base - folders_.begin());
        const OwnFolder own = own_parts(folder, other, name, true);
        if (own.why.empty()) {
            freed += take(other, name, own);
            other.sync();
        } else if (!own.is_missing && split_parts(name).identity == owner_.identity()) {
            is_done = false;
        }
    }
    return is_done;
}

// The parts go first: a manifest that is there names them, should this be killed. As long as some
// cannot be removed, it stays.
std::uint64_t Remover::remove_hidden(const Folder& store, const std::string& name) {
    std::optional<Manifest> manifest;
    const OwnFolder own = own_leftover(store, name, manifest);
    std::uint64_t freed = 0;
    bool is_done = true;
    if (own.why.empty()) {
        is_done = !manifest || take_named_parts(store, name, *manifest, freed);
        try {
            report_foreign_parts(own.folder, name);
        } catch (const Error&) {  // a link to a place without permission
        }
    }
    return freed + take(store, name, own, !is_done);
}

// Renames a checkpoint and returns the new name; empty: it stays.
std::string Remover::hide(const Folder& store, const std::string& checkpoint) {
    std::string why = why_not_own(store, checkpoint);
    if (why.empty()) {
        why = look_into(checkpoint).why;
    }
    if (!why.empty()) {
        leave(store, checkpoint, why);
        return {};
    }
    std::string name = removed_name(checkpoint);
    for (int next = 2;; ++next) {
        try {
            store.rename(checkpoint, name);
            break;
        } catch (const Error& error) {
            // Else: an earlier one, which could not be removed.
            if (!exists(error) || next > kHiddenMax) {
                throw;
            }
            name = fmt::format("{}-{}", removed_name(checkpoint), next);
        }
    }
    // Also where the pin cannot be looked for: it may be there.
    const auto put_back = [&] { store.rename(name, checkpoint); };
    try {
        const OwnFolder own = look(store, name);
        if (!own.why.empty() || !status_of(own.folder, std::string(kPinnedName))) {
            return name;
        }
    } catch (const Error&) {
        put_back();
        throw;
    }
    put_back();
    return {};
}

// A pin in a folder that goes: hide() was killed before it gave the name back. It gets its name, or
// stays where another one has it. What takes a pinned one away removes the pin first.
bool Remover::keep_pinned(const Folder& store, const std::string& name) {
    const OwnFolder own = look(store, name);
    const auto had = removed_checkpoint(name);
    if (!had || !own.why.empty() || !is_file(own.folder, kPinnedName) ||
        !look_into(name).why.empty()) {
        return false;
    }
    if (status_of(store, had->name)) {
        leave(store, name,
              fmt::format("it is pinned, and another folder has its name, '{}'; delete one of the "
                          "two yourself",
                          had->name));
        return true;
    }
    store.rename(name, had->name);
    store.sync();
    return true;
}

std::uint64_t Remover::remove(std::span<const std::string> checkpoints) {
    const Folder store = files_.open_folder(folders_.front());
    std::vector<std::string> hidden;
    for (const std::string& checkpoint : checkpoints) {
        attempt(join(store.path(), checkpoint), [&]() -> std::uint64_t {
            if (std::string name = hide(store, checkpoint); !name.empty()) {
                hidden.push_back(std::move(name));
            }
            return 0;
        });
    }
    store.sync();
    going_.insert(hidden.begin(), hidden.end());
    std::uint64_t freed = 0;
    for (const std::string& name : hidden) {
        freed += attempt(join(store.path(), name), [&] { return remove_hidden(store, name); });
    }
    end();
    return freed;
}

std::uint64_t Remover::collect() {
    const Folder store = files_.open_folder(folders_.front());
    const FolderScan scan = scan_names(store.list());
    std::uint64_t freed = 0;
    for (const std::string& name : scan.leftovers) {
        freed += attempt(join(store.path(), name),
                         [&] { return keep_pinned(store, name) ? 0 : remove_hidden(store, name); });
    }
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        freed += attempt(folders_[i], [&] { return collect_parts(store, i); });
    }
    end();
    return freed;
}

// One line for all of them: two runs may share a drive, and then this is as it should be.
void Remover::report_other_stores(const Folder& other, std::span<const std::string> names) {
    std::set<std::string_view> stores;
    const std::string earlier = path_digits(folders_.front());
    for (const std::string& name : names) {
        const PartsName parts = split_parts(name);
        const bool is_mine = parts.identity.empty() ? parts.path_digits == earlier
                                                    : parts.identity == owner_.identity();
        if (!parts.checkpoint.empty() && !is_mine) {
            stores.insert(parts.identity.empty() ? parts.path_digits : parts.identity);
        }
    }
    if (!stores.empty()) {
        left_.push_back(fmt::format(
            "shards of other stores in '{}' were left ({}{}): if the first folder of this store "
            "was moved, copied or restored, or is not mounted, they may be its earlier ones",
            other.path(), *stores.begin(), stores.size() == 1 ? "" : " and others"));
    }
}

// One line for all of them: they may be many, and each save finds them again.
void Remover::report_moved(const Folder& other, std::span<const std::string> names) {
    if (!names.empty()) {
        left_.push_back(fmt::format(
            "'{}'{} left: no checkpoint in '{}' leads there (is its disk mounted? was a checkpoint "
            "moved away, or removed by hand?); delete {} yourself when no other one does",
            join(other.path(), names.front()),
            names.size() == 1 ? " was" : fmt::format(" and {} more were", names.size() - 1),
            folders_.front(), names.size() == 1 ? "it" : "them"));
    }
}

// Removes parts of saves that were killed. What has its final name was committed, and its
// checkpoint may be anywhere: moved, in an older copy of the first folder, on a disk that is not
// mounted.
std::uint64_t Remover::collect_parts(const Folder& store, std::size_t folder) {
    const Folder other = open_if_there(files_, folders_[folder]);
    if (!other.is_open()) {
        return 0;
    }
    const std::vector<std::string> names = other.list();
    report_other_stores(other, names);
    const std::string earlier = path_digits(folders_.front());
    std::vector<std::string> moved;
    std::uint64_t freed = 0;
    for (const std::string& name : names) {
        const PartsName parts = split_parts(name);
        if (parts.checkpoint.empty() ||
            (!is_of(parts, owner_.identity()) && parts.path_digits != earlier)) {
            continue;
        }
        freed += attempt(join(other.path(), name), [&]() -> std::uint64_t {
            if (parts.is_unfinished || base::planted("moved_checkpoint")) {
                return take(other, name, own_parts(folder, other, name, false));
            }
            if (!status_of(store, std::string(parts.checkpoint)) &&
                !status_of(store, removed_name(parts.checkpoint))) {
                moved.push_back(name);
            }
            return 0;
        });
    }
    report_moved(other, moved);
    return freed;
}

void Remover::take_away(std::string_view hidden, std::span<const std::string> parts) {
    const Folder store = files_.open_folder(folders_.front());
    const std::string gone(hidden);
    const OwnFolder pinned = look(store, gone);
    if (pinned.why.empty() && is_file(pinned.folder, kPinnedName)) {
        pinned.folder.remove(std::string(kPinnedName));
    }
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        if (parts[i].empty()) {
            continue;
        }
        const Folder other = files_.open_folder(folders_[i]);
        const std::string named(base::last_name(parts[i]));
        for (const std::string& name : {unfinished_parts_name(named), named}) {
            static_cast<void>(attempt(join(other.path(), name), [&] {
                return take(other, name, own_parts(i, other, name, true));
            }));
        }
        static_cast<void>(
            attempt(other.path(), [&]() -> std::uint64_t { return other.sync(), 0; }));
    }
    end();  // the manifest stays with parts that stay: collect() needs it
    std::optional<Manifest> manifest;
    static_cast<void>(take(store, gone, own_leftover(store, gone, manifest)));
    end();
}

}  // namespace penstock::store
