// SPDX-License-Identifier: Apache-2.0
#include "store/keep/place.hpp"

#include "base/assert.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "store/identity/identity.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/stock_index.hpp"
#include "store/stuck/folder_content.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <utility>

namespace penstock::store {

namespace {

constexpr const char* kSave = "save checkpoint";
constexpr std::string_view kWorkPrefix = ".penstock-";
// The older folder, where the file system cannot exchange names.
constexpr std::string_view kAsideName = "replaced";
constexpr std::string_view kStockMetadata = ".metadata";
constexpr std::string_view kStockPrefix = "__";
constexpr std::string_view kStockSuffix = ".distcp";
constexpr std::string_view kPickle = "\x80";
constexpr int kLocksMax = 1000;  // each finds that the save before has just ended

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, kSave, why, path));
}

bool lacks_exchange(const Error& error) {
    const int number = error.system_errno();
    return error.reason() == ErrorCode::kUnsupported || number == EINVAL || number == ENOSYS ||
           number == EOPNOTSUPP;
}

// "__0_0.distcp", as torch's FileSystemWriter names its files.
bool is_stock_name(std::string_view name) {
    return name == kStockMetadata ||
           (name.starts_with(kStockPrefix) && name.ends_with(kStockSuffix) &&
            name.find_first_not_of("0123456789_") == name.size() - kStockSuffix.size());
}

// A save makes these besides the shards that a manifest names.
bool is_made_by_a_save(std::string_view name) {
    return name == kManifestName || name == format::kShardIndexName || name == kPinnedName ||
           is_share_name(name);
}

// torch's .metadata is a pickle. A file of others may have that name, too: begin() refuses it.
bool has_stock_checkpoint(const FileSystem& files, const Folder& folder,
                          const std::vector<std::string>& names) {
    const std::string name(kStockMetadata);
    const auto status = status_of(folder, name);
    return status && status->kind == FileKind::kFile &&
           (std::any_of(
                names.begin(), names.end(),
                [](const auto& one) { return one != kStockMetadata && is_stock_name(one); }) ||
            files.begins_with(join(folder.path(), name), kPickle));
}

std::optional<FileKind> kind_of(const Folder& folder, const std::string& name) {
    const auto status = status_of(folder, name);
    return status ? std::optional(status->kind) : std::nullopt;
}

}  // namespace

// Letters alone: programs look for numbers in names ("step-100").
std::string work_folder_of(const std::string& path) {
    const std::string_view name = base::last_name(path);
    std::uint64_t hash = stream::content_hash(std::as_bytes(std::span(name)));
    std::string out(kWorkPrefix);
    for (int i = 0; i < 16; ++i, hash >>= 4U) {
        out += static_cast<char>('a' + static_cast<int>(hash & 15U));
    }
    return join(base::folder_of(path), out);
}

CheckpointPlace::CheckpointPlace(Engine& engine, const FileSystem& files, std::string path)
    : engine_(engine),
      files_(files),
      path_(std::move(path)),
      parent_(base::folder_of(path_)),
      work_(work_folder_of(path_)),
      aside_(join(work_, kAsideName)) {
    if (base::last_name(path_).empty()) {
        refuse(path_, "it is no path of a checkpoint; give one with a name at its end");
    }
}

StoreLock CheckpointPlace::lock(std::uint32_t wait_ms) const {
    for (int tries = 0; tries < kLocksMax; ++tries) {
        make_folders(files_, work_);
        const auto status = files_.find(work_);
        if (status && status->kind != FileKind::kFolder) {
            refuse(work_, "it is no folder, and a save to the path needs the name; move it away");
        }
        try {
            StoreLock lock = lock_store(engine_, files_, work_, wait_ms);
            if (lock.held()) {
                return lock;
            }
        } catch (const Error& error) {
            if (error.system_errno() != ENOENT) {
                throw;
            }
        }
    }
    base::raise(base::system_error(EWOULDBLOCK, "lock checkpoint", path_, kNoOffset,
                                   "other saves to this path end and begin all the time"));
}

std::uint64_t CheckpointPlace::begin() {
    left_.clear();
    carried_.clear();
    put_ = Put::kNothing;
    settle();
    return check_what_is_there();
}

std::uint64_t CheckpointPlace::check_what_is_there() const {
    const auto status = files_.find(path_);
    if (!status) {
        return 1;
    }
    if (status->kind != FileKind::kFolder) {
        refuse(path_, "it is no folder; give the path of one, which need not be there");
    }
    const DeviceId above = files_.status(parent_).device;
    if (status->device.major != above.major || status->device.minor != above.minor) {
        refuse(path_,
               "a file system is mounted there, and cannot be replaced; give a folder in it");
    }
    const Folder folder = files_.open_folder(path_);
    if (kind_of(folder, std::string(kIdentityName))) {
        refuse(path_,
               "it is the folder of a CheckpointStore; save with that, or give another path");
    }
    const std::vector<std::string> names = folder.list();
    if (kind_of(folder, std::string(kStockMetadata)) &&
        !has_stock_checkpoint(files_, folder, names)) {
        refuse(path_,
               fmt::format("it holds '{}', which is no file of torch, and readers would take "
                           "it for one; move it away, or give another path",
                           kStockMetadata));
    }
    if (kind_of(folder, std::string(kManifestName)) != FileKind::kFile) {
        for (const std::string& name : names) {
            if (is_made_by_a_save(name) || is_shard_name(name)) {
                refuse(path_, fmt::format("it holds '{}', a name that a save makes, and no {} that "
                                          "says whose it is; move it away, or give another path",
                                          name, kManifestName));
            }
        }
        return 1;
    }
    return check_manifest_there() + 1;
}

// The generation of the checkpoint at the path.
std::uint64_t CheckpointPlace::check_manifest_there() const {
    const std::string name(base::last_name(path_));
    if (parse_checkpoint_name(name) && is_there(files_, join(parent_, kIdentityName))) {
        refuse(path_,
               "it is a checkpoint of a CheckpointStore; save with that, or give another "
               "path");
    }
    try {
        const Manifest manifest = read_manifest(engine_, files_, path_);
        if (manifest.folders.size() > 1) {
            refuse(path_, fmt::format("its shards lie in other folders, such as '{}', and would be "
                                      "lost; give another path",
                                      manifest.folders[1]));
        }
        return std::min(manifest.generation, kGenerationMax - 1);
    } catch (const Error& error) {
        if (error.reason() != ErrorCode::kDamaged) {
            throw;
        }
        refuse(path_, fmt::format("its {} cannot be read, so it is not known which files are its "
                                  "own ({}); move it away, or give another path",
                                  kManifestName, error.what()));
    }
}

// The names of a folder that a save may remove, or leave behind. `is_work`: of the work folder. One
// without a manifest, or with half a one, is then a save that was killed: begin() refuses such a
// folder at the path, and carry() has links to what came there since.
std::set<std::string> CheckpointPlace::own_names(const Folder& folder, bool is_work) const {
    std::optional<Manifest> manifest;
    try {
        if (kind_of(folder, std::string(kManifestName)) == FileKind::kFile) {
            manifest = read_manifest(engine_, files_, folder.path());
        }
    } catch (const Error& error) {
        if (error.reason() != ErrorCode::kDamaged && error.reason() != ErrorCode::kEndOfFile) {
            throw;
        }
    }
    const std::vector<std::string> names = folder.list();
    const bool is_stock = is_work ? kind_of(folder, std::string(kStockMetadata)) == FileKind::kFile
                                  : has_stock_checkpoint(files_, folder, names);
    std::set<std::string> own;
    for (const std::string& name : names) {
        const bool is_shard =
            manifest ? std::any_of(manifest->shards.begin(), manifest->shards.end(),
                                   [&](const Shard& shard) { return shard.file == name; })
                     : is_work && is_shard_name(name);
        const bool is_own = is_shard || (is_stock && is_stock_name(name)) ||
                            ((is_work || manifest) && is_made_by_a_save(name));
        if (is_own && kind_of(folder, name) != FileKind::kFolder) {
            own.insert(name);
        }
    }
    return own;
}

// Before something is written: a folder that only its owner may enter stays one.
void CheckpointPlace::permit(const std::string& unfinished) const {
    const auto status = files_.find(path_);
    if (!status || status->kind != FileKind::kFolder) {
        return;
    }
    try {
        files_.open_folder(unfinished).take_attributes(path_);
    } catch (const Error& error) {
        if (error.reason() != ErrorCode::kUnsupported) {
            throw;
        }
    }
}

void CheckpointPlace::carry(const std::string& unfinished) {
    const auto status = files_.find(path_);
    if (!status || status->kind != FileKind::kFolder) {
        return;
    }
    const Folder from = files_.open_folder(path_);
    const Folder to = files_.open_folder(unfinished);
    const std::set<std::string> own = own_names(from, false);
    std::vector<std::string> to_move;
    for (const std::string& name : from.list()) {
        if (own.contains(name)) {
            continue;
        }
        if (kind_of(to, name)) {
            refuse(join(path_, name),
                   "it is no file of the checkpoint that is replaced, and the "
                   "new one needs its name; move it away, or give another path");
        }
        const auto mine = status_of(from, name);
        if (!mine) {
            continue;
        }
        if (mine->kind != FileKind::kFile || !link(name, unfinished)) {
            to_move.push_back(name);
        } else {
            carried_[name] = mine->inode;
        }
    }
    if (to_move.empty()) {
        return;
    }
    files_.sync_folder(work_);  // a power cut must not take the folder that they are moved to
    to.sync();
    for (const std::string& name : to_move) {
        move(name, unfinished);
    }
}

bool CheckpointPlace::link(const std::string& name, const std::string& unfinished) const {
    try {
        files_.link(join(path_, name), join(unfinished, name));
        return true;
    } catch (const Error& error) {
        if (error.system_errno() == ENOSPC || error.system_errno() == EIO) {
            throw;
        }
        return false;
    }
}

// Before the commit: what cannot be moved (a mount, a folder of another user) ends the save. The
// caller's settle() brings back what was moved.
void CheckpointPlace::move(const std::string& name, const std::string& unfinished) const {
    const std::string here = join(path_, name);
    try {
        files_.rename(here, join(unfinished, name));
    } catch (const Error& error) {
        if (error.system_errno() == ENOENT) {  // others removed it
            return;
        }
        base::raise(base::system_error(
            error.system_errno(), kSave, here, kNoOffset,
            "it is no part of the checkpoint, and could not be moved to the new one (a mount, or "
            "a folder without the right to write); move it away, or give another path"));
    }
}

void CheckpointPlace::put(const std::string& unfinished) {
    PENSTOCK_ASSERT(put_ == Put::kNothing);
    PENSTOCK_ASSERT(base::folder_of(unfinished) == work_);
    if (!is_there(files_, path_)) {
        try {
            files_.rename(unfinished, path_);
            put_ = Put::kRenamed;
            return;
        } catch (const Error& error) {
            if (!exists(error)) {
                throw;
            }
        }
    }
    try {
        files_.exchange(unfinished, path_);
        put_ = Put::kExchanged;
        return;
    } catch (const Error& error) {
        if (!lacks_exchange(error)) {
            throw;
        }
    }
    left_.push_back(
        fmt::format("this file system cannot exchange two names: '{}' had none for a moment (a "
                    "crash then would "
                    "have left the older checkpoint as '{}', and the next save puts it back)",
                    path_, aside_));
    files_.rename(path_, aside_);
    try {
        files_.rename(unfinished, path_);
        put_ = Put::kAside;
    } catch (const Error&) {
        files_.rename(aside_, path_);
        sync_names();
        throw;
    }
}

void CheckpointPlace::take_back(const std::string& unfinished) {
    if (put_ == Put::kExchanged) {
        files_.exchange(unfinished, path_);
    } else if (put_ != Put::kNothing) {
        files_.rename(path_, unfinished);
        if (put_ == Put::kAside) {
            files_.rename(aside_, path_);
        }
    }
    if (put_ != Put::kNothing) {
        sync_names();
    }
    put_ = Put::kNothing;
}

// The older folder has its name back. What follows removes the new one, and the work folder:
// without this a power cut could keep that, and not the name.
void CheckpointPlace::sync_names() const {
    files_.sync_folder(parent_);
    files_.sync_folder(work_);
}

void CheckpointPlace::settle() {
    const Folder work = files_.open_folder(work_);
    if (kind_of(work, std::string(kAsideName))) {
        put_back(work);
    }
    for (const std::string& name : work.list()) {
        if (name == kLockName) {
            continue;
        }
        if (name != kAsideName && !hidden_generation(name)) {
            leave_it(join(work_, name), "no save makes this name");
            continue;
        }
        try {
            clear(work, name);
        } catch (const Error& error) {
            leave_it(join(work_, name), error.what());
        }
    }
}

// The older folder, of a save that was killed between its two renames. The path may have been made
// since: it is no checkpoint then, and the one aside is the only one.
void CheckpointPlace::put_back(const Folder& work) {
    if (is_there(files_, join(path_, kManifestName)) ||
        is_there(files_, join(path_, kStockMetadata))) {
        return;
    }
    try {
        files_.rename(aside_, path_);  // also over an empty folder
    } catch (const Error& error) {
        if (!exists(error)) {
            throw;
        }
        refuse(path_, fmt::format("the older checkpoint is '{}', where a save that was killed left "
                                  "it, and other files have its path; move one of them away",
                                  aside_));
    }
    files_.sync_folder(parent_);
    work.sync();
}

void CheckpointPlace::leave_it(const std::string& path, std::string_view why) {
    left_.push_back(fmt::format("'{}' was left: {}", path, why));
}

// Removes one folder of the work folder. What others have in it goes first, durably.
void CheckpointPlace::clear(const Folder& work, const std::string& name) {
    if (kind_of(work, name) != FileKind::kFolder) {
        leave_it(join(work_, name), "it is no folder, and no save makes it");
        return;
    }
    PENSTOCK_ASSERT(work.path() == work_);  // own_names() is of what a save made
    const Folder folder = work.open_folder(name);
    const std::set<std::string> own = own_names(folder, true);
    bool all = true;
    bool any = false;
    for (const std::string& inside : folder.list()) {
        if (!own.contains(inside)) {
            all = give(folder, inside, path_) && all;
            any = true;
        }
    }
    if (any) {
        files_.sync_folder(path_);
        folder.sync();
    }
    // The two that say whose the rest is go last, and stay with what stays.
    std::vector<std::string> last;
    for (const std::string& inside : own) {
        if (inside == kManifestName || inside == kStockMetadata) {
            last.push_back(inside);
        } else {
            folder.remove(inside);
        }
    }
    if (!last.empty()) {
        folder.sync();
    }
    for (std::size_t i = 0; all && i < last.size(); ++i) {
        folder.remove(last[i]);
    }
    if (all) {
        work.remove_folder(name);
    }
}

// Moves what others have to a folder where it may be already. False: it stays.
bool CheckpointPlace::give(const Folder& from, const std::string& name, const std::string& to) {
    const std::string here = join(from.path(), name);
    const std::string there = join(to, name);
    const auto mine = status_of(from, name);
    const auto taken = files_.find(there);
    if (!mine) {
        return true;
    }
    if (!taken && !is_there(files_, to)) {
        leave_it(here, fmt::format("it belongs into '{}', which is not there any more", to));
        return false;
    }
    if (!taken) {
        files_.rename(here, there);
        return true;
    }
    if (taken->inode == mine->inode && taken->kind == FileKind::kFile) {
        from.remove(name);
        return true;
    }
    // Others replaced a file after carry() had linked it: theirs is the new one.
    const auto carried = to == path_ ? carried_.find(name) : carried_.end();
    if (carried != carried_.end() && mine->inode == carried->second) {
        from.remove(name);
        return true;
    }
    if (carried != carried_.end() && taken->inode == carried->second &&
        mine->kind == FileKind::kFile) {
        files_.rename(here, there);
        return true;
    }
    if (taken->kind == FileKind::kFolder && mine->kind == FileKind::kFolder) {
        if (!give_all(from.open_folder(name), there)) {
            return false;
        }
        from.remove_folder(name);
        return true;
    }
    leave_it(here, fmt::format("'{}' is there as well; look at both, and delete one", there));
    return false;
}

bool CheckpointPlace::give_all(const Folder& from, const std::string& to) {
    bool all = true;
    for (const std::string& name : from.list()) {
        all = give(from, name, to) && all;
    }
    files_.sync_folder(to);
    return all;
}

void CheckpointPlace::leave() noexcept {
    try {
        const Folder work = files_.open_folder(work_);
        const std::vector<std::string> names = work.list();
        if (names.size() == 1 && names.front() == kLockName) {
            work.remove(std::string(kLockName));
            files_.remove(work_);
        }
    } catch (const std::exception&) {  // the next save tries it again
        return;
    }
}

}  // namespace penstock::store
