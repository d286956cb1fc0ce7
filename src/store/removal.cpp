// SPDX-License-Identifier: Apache-2.0
#include "store/removal.hpp"

#include "base/hex.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "store/stock_index.hpp"
#include "store/store_folder.hpp"
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
    std::string why;       // empty: it may be removed
    bool missing = false;  // nothing is there
};

namespace {

constexpr std::size_t kRandomDigits = 8;
constexpr std::size_t kPartsDigits = base::kHexDigits + kRandomDigits;
constexpr int kDepthMax = 64;  // of folders in a checkpoint; a save makes none

std::string store_digits(const std::string& store_folder) {
    std::string digits;
    base::append_hex(digits, stream::content_hash(std::as_bytes(std::span(store_folder))));
    return digits;
}

// Splits the name of a parts folder into "<checkpoint>" and its digits; empty for any other name.
std::pair<std::string_view, std::string_view> split_parts(std::string_view name) {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || name.size() - dot - 1 != kPartsDigits ||
        name.find_first_not_of("0123456789abcdef", dot + 1) != std::string_view::npos ||
        !parse_checkpoint_name(name.substr(0, dot))) {
        return {};
    }
    return {name.substr(0, dot), name.substr(dot + 1)};
}

bool exists(const Error& error) {
    return error.system_errno() == EEXIST || error.system_errno() == ENOTEMPTY ||
           error.system_errno() == ENOTDIR;
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

std::optional<FileStatus> status_of(const Folder& folder, const std::string& name) {
    try {
        return folder.status(name);
    } catch (const Error& error) {
        if (is_missing(error)) {
            return std::nullopt;
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
           is_shard_name(name);
}

// Removes all of a folder but `last`, then that. No link is followed; a mount is an error.
std::uint64_t empty(const Folder& folder, std::string_view last, int depth = 0) {
    if (depth > kDepthMax) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "remove folder",
                                fmt::format("folders lie in it more than {} deep; delete it "
                                            "yourself",
                                            kDepthMax),
                                folder.path()));
    }
    std::uint64_t freed = 0;
    const auto remove = [&](const std::string& name) {
        const auto status = status_of(folder, name);
        if (!status) {
            return;
        }
        if (status->kind == FileKind::kFolder) {
            freed += empty(folder.open_folder(name), {}, depth + 1);
            folder.remove_folder(name);
            return;
        }
        folder.remove(name);
        freed += status->kind == FileKind::kFile && status->links <= 1 ? status->bytes : 0;
    };
    for (const std::string& name : folder.list()) {
        if (name != last) {
            remove(name);
        }
    }
    if (!last.empty()) {
        remove(std::string(last));
    }
    return freed;
}

OwnFolder not_own(std::string why) {
    return {{}, std::move(why), false};
}

// Opens a folder, directly in its parent.
OwnFolder look(const Folder& parent, const std::string& name) {
    const auto status = status_of(parent, name);
    if (!status) {
        return {{}, "there is nothing of that name", true};
    }
    if (status->kind != FileKind::kFolder) {
        return not_own(status->kind == FileKind::kSymbolicLink ? "it is a symbolic link"
                                                               : "it is no folder");
    }
    try {
        return {parent.open_folder(name), "", false};
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

OwnFolder own_leftover(const Folder& parent, const std::string& name) {
    OwnFolder own = look(parent, name);
    if (!own.why.empty() ||
        (name.starts_with(kRemovedPrefix) && is_file(own.folder, kManifestName))) {
        return own;
    }
    for (const std::string& inside : own.folder.list()) {
        if (!is_name_of_a_save(inside)) {
            return not_own(fmt::format("it holds '{}', which no save makes", inside));
        }
    }
    return own;
}

OwnFolder own_parts(const Folder& parent, const std::string& name) {
    OwnFolder own = look(parent, name);
    if (!own.why.empty()) {
        return own;
    }
    for (const std::string& inside : own.folder.list()) {
        if (!is_shard_name(inside) || !is_file(own.folder, inside)) {
            return not_own(fmt::format("it holds '{}', which is no shard", inside));
        }
    }
    return own;
}

}  // namespace

std::string parts_name(std::string_view checkpoint, const std::string& store_folder,
                       std::uint64_t random) {
    std::string digits;
    base::append_hex(digits, random);
    return fmt::format("{}.{}{}", checkpoint, store_digits(store_folder),
                       digits.substr(0, kRandomDigits));
}

std::string why_not_own(const Folder& store, const std::string& checkpoint) {
    const OwnFolder own = look(store, checkpoint);
    return !own.why.empty() || is_file(own.folder, kManifestName)
               ? own.why
               : fmt::format("it holds no {}", kManifestName);
}

void Remover::leave(const Folder& parent, std::string_view name, std::string_view why) {
    left_.push_back(fmt::format("'{}' was left: {}", join(parent.path(), name), why));
}

std::uint64_t Remover::take(const Folder& parent, const std::string& name, const OwnFolder& own) {
    if (!own.why.empty()) {
        if (!own.missing) {
            leave(parent, name, own.why);
        }
        return 0;
    }
    const std::uint64_t freed = empty(own.folder, kManifestName);
    parent.remove_folder(name);
    return freed;
}

// Runs one removal; its failure does not keep others from running.
template <typename Call>
std::uint64_t Remover::attempt(Call call) {
    try {
        return call();
    } catch (const Error&) {
        if (!trouble_) {
            trouble_ = std::current_exception();
        }
        return 0;
    }
}

void Remover::end() {
    if (trouble_) {
        std::rethrow_exception(std::exchange(trouble_, nullptr));
    }
}

// Reports shards that links of a checkpoint lead to, and whose place or name is not one of this
// store's: the store was moved, or another program made the links.
void Remover::report_foreign_parts(const Folder& checkpoint, const std::string& name) {
    std::set<std::string> seen;
    for (const std::string& file : checkpoint.list()) {
        const auto status = status_of(checkpoint, file);
        if (!status || status->kind != FileKind::kSymbolicLink || !is_shard_name(file)) {
            continue;
        }
        const std::string target = files_.resolve(join(join(folders_.front(), name), file));
        const std::string folder = base::folder_of(target);
        const std::string above = base::folder_of(folder);
        const auto digits = split_parts(base::last_name(folder)).second;
        const bool ours = digits.starts_with(store_digits(folders_.front())) &&
                          std::count(folders_.begin() + 1, folders_.end(), above) != 0;
        if (!ours && is_there(files_, target) && seen.insert(folder).second) {
            left_.push_back(fmt::format(
                "'{}' was left: links of '{}' lead there, and it is not known as this store's (was "
                "the store moved, or opened without that folder?); delete it yourself if it is",
                folder, name));
        }
    }
}

std::uint64_t Remover::remove_hidden(const Folder& store, const std::string& name) {
    const OwnFolder own = own_leftover(store, name);
    if (own.why.empty()) {
        try {
            report_foreign_parts(own.folder, name);
        } catch (const Error&) {  // a link to a place without permission
        }
    }
    return take(store, name, own);
}

// Renames a checkpoint and returns the new name; empty: it stays.
std::string Remover::hide(const Folder& store, const std::string& checkpoint) {
    if (const std::string why = why_not_own(store, checkpoint); !why.empty()) {
        leave(store, checkpoint, why);
        return {};
    }
    std::string name = removed_name(checkpoint);
    for (int next = 2;; ++next) {
        try {
            store.rename(checkpoint, name);
            break;
        } catch (const Error& error) {
            if (!exists(error)) {  // else: an earlier one, which could not be removed
                throw;
            }
            name = fmt::format("{}-{}", removed_name(checkpoint), next);
        }
    }
    const OwnFolder own = look(store, name);
    if (own.why.empty() && status_of(own.folder, std::string(kPinnedName))) {
        store.rename(name, checkpoint);
        return {};
    }
    return name;
}

std::uint64_t Remover::remove(std::span<const std::string> checkpoints) {
    const Folder store = files_.open_folder(folders_.front());
    std::vector<std::string> hidden;
    std::set<std::string, std::less<>> removed;
    for (const std::string& checkpoint : checkpoints) {
        if (std::string name = hide(store, checkpoint); !name.empty()) {
            hidden.push_back(std::move(name));
            removed.insert(checkpoint);
        }
    }
    store.sync();
    std::uint64_t freed = 0;
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        freed += attempt([&]() -> std::uint64_t {
            const Folder other = open_if_there(files_, folders_[i]);
            if (!other.is_open()) {
                return 0;
            }
            std::vector<std::string> parts = orphans(store, other);
            std::erase_if(parts, [&](const std::string& name) {
                return !removed.contains(split_parts(name).first);
            });
            return take_parts(other, parts);
        });
    }
    for (const std::string& name : hidden) {
        freed += attempt([&] { return remove_hidden(store, name); });
    }
    end();
    return freed;
}

std::uint64_t Remover::collect() {
    const Folder store = files_.open_folder(folders_.front());
    const FolderScan scan = scan_names(store.list());
    std::uint64_t freed = 0;
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        freed += attempt([&]() -> std::uint64_t {
            const Folder other = open_if_there(files_, folders_[i]);
            return !other.is_open()
                       ? 0
                       : collect_parts(other, orphans(store, other), scan.generation_max);
        });
    }
    for (const std::string& name : scan.leftovers) {
        freed += attempt([&] { return remove_hidden(store, name); });
    }
    end();
    return freed;
}

// Lists parts of this store whose checkpoint is gone or not yet there.
std::vector<std::string> Remover::orphans(const Folder& store, const Folder& other) const {
    const std::string ours = store_digits(folders_.front());
    std::vector<std::string> names = other.list();
    std::erase_if(names, [&](const std::string& name) {
        const auto [checkpoint, digits] = split_parts(name);
        // Another store may have shards here too.
        return checkpoint.empty() || !digits.starts_with(ours) ||
               status_of(store, std::string(checkpoint)).has_value();
    });
    return names;
}

std::uint64_t Remover::take_parts(const Folder& other, const std::vector<std::string>& names) {
    std::uint64_t freed = 0;
    for (const std::string& name : names) {
        freed += attempt([&] { return take(other, name, own_parts(other, name)); });
    }
    return freed;
}

// Removes nothing if one of them is newer than any that the previous save could have left: then the
// first folder is not the one that they were saved with (its disk is not mounted), and they may be
// the only copy of their checkpoints.
std::uint64_t Remover::collect_parts(const Folder& other, const std::vector<std::string>& names,
                                     std::uint64_t generation_max) {
    const auto newer = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
        return generation_max == 0 ||
               parse_checkpoint_name(split_parts(name).first)->generation - 1 > generation_max;
    });
    if (newer == names.end()) {
        return take_parts(other, names);
    }
    for (const std::string& name : names) {
        leave(other, name,
              fmt::format("its checkpoint is not in '{}', and none as new as that of '{}'; is the "
                          "disk of that folder mounted?",
                          folders_.front(), *newer));
    }
    return 0;
}

void Remover::take_away(std::string_view hidden, std::span<const std::string> parts) {
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        if (!parts[i].empty()) {
            const Folder other = files_.open_folder(folders_[i]);
            const std::string name(base::last_name(parts[i]));
            static_cast<void>(attempt([&] { return take(other, name, own_parts(other, name)); }));
        }
    }
    const Folder store = files_.open_folder(folders_.front());
    const std::string name(hidden);
    static_cast<void>(take(store, name, own_leftover(store, name)));
    end();
}

}  // namespace penstock::store
