// SPDX-License-Identifier: Apache-2.0
#include "state/index_folder.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/random.hpp"
#include "format/shard_index.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

namespace penstock::state {

namespace {

constexpr std::string_view kAnyIndexSuffix = ".index.json";
constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::chrono::seconds kLockWait{5};
constexpr std::chrono::milliseconds kTryAgain{5};

bool is_gone(const Error& error) {
    const int number = error.system_errno();
    return number == ENOENT || number == ENOTDIR || number == ELOOP;
}

// Throws if that cannot be checked: another name would fail too.
bool is_there(const FileSystem& files, const std::string& path) {
    try {
        static_cast<void>(files.status(path));
        return true;
    } catch (const Error& error) {
        if (!is_gone(error)) {
            throw;
        }
        return false;
    }
}

// A process that may not list a folder may still write into it; a missing folder is reported by the
// save.
Folder open_if_allowed(const FileSystem& files, const std::string& path) {
    try {
        return files.open_folder(path);
    } catch (const Error& error) {
        if (error.system_errno() != EACCES && !is_gone(error)) {
            throw;
        }
        return {};
    }
}

}  // namespace

IndexFolder::IndexFolder(Engine& engine, FileSystem files, const std::string& path, bool sync)
    : engine_(engine),
      files_(std::move(files)),
      sync_(sync),
      beside_(base::folder_of(path)),
      index_(files_.resolve(path)),
      path_(base::folder_of(index_)),
      stem_(base::last_name(index_)),
      folder_(open_if_allowed(files_, path_)) {
    if (stem_.ends_with(format::kIndexSuffix)) {
        stem_.resize(stem_.size() - format::kIndexSuffix.size());
    }
}

std::string IndexFolder::in(const std::string& name) const {
    return base::join(path_, name);
}

FileLock IndexFolder::lock() const {
    const auto until = std::chrono::steady_clock::now() + kLockWait;
    while (folder_.is_open()) {
        try {
            return folder_.lock();
        } catch (const Error& error) {
            if (error.system_errno() != EWOULDBLOCK || std::chrono::steady_clock::now() >= until) {
                break;
            }
        }
        std::this_thread::sleep_for(kTryAgain);
    }
    return {};
}

std::vector<std::string> IndexFolder::named_in(const std::string& path) const {
    try {
        // Opening a pipe would wait for its writer.
        if (files_.status(files_.resolve(path)).kind != FileKind::kFile) {
            return {};
        }
        const File file = files_.open(path, {.cache = CachePolicy::kCached});
        std::string text(std::min(file.size(), format::kShardIndexBytesMax + 1), '\0');
        stream::read_when_room(engine_, file, std::as_writable_bytes(std::span(text)), 0);
        auto index = format::parse_shard_index(text);
        if (!index) {
            return {};  // no index: it names nothing
        }
        std::set<std::string> names;
        for (auto& [tensor, name] : index->weight_map) {
            names.insert(std::move(name));
        }
        return {names.begin(), names.end()};
    } catch (const Error& error) {
        if (is_gone(error) || error.reason() == ErrorCode::kEndOfFile) {
            return {};
        }
        throw;
    }
}

std::vector<std::string> IndexFolder::own_named_in(const std::string& record) const {
    std::vector<std::string> names = named_in(record);
    std::erase_if(names, [this](const auto& n) { return !format::is_shard_name(n, stem_); });
    return names;
}

std::vector<std::string> IndexFolder::shards() const {
    try {
        return named_in(index_);
    } catch (const Error& error) {
        if (error.system_errno() != EACCES) {
            throw;
        }
        return {};
    }
}

std::set<std::string> IndexFolder::collect() const {
    std::set<std::string> living;
    if (!folder_.is_open()) {
        return living;
    }
    const std::string_view name = base::last_name(index_);
    for (const std::string& other : folder_.list()) {
        if (named_by_temporary(other) != kept_in_temporary(name)) {
            continue;
        }
        std::vector<std::string> shards;
        try {
            const FileLock mine = files_.lock(in(other));  // fails for a link and a folder
            shards = own_named_in(in(other));
            if (remove(shards)) {
                folder_.remove(other);
                continue;
            }
        } catch (const Error& error) {
            if (error.system_errno() == EWOULDBLOCK) {
                shards = own_named_in(in(other));
            }
        }
        living.insert(shards.begin(), shards.end());
    }
    return living;
}

std::vector<std::string> IndexFolder::free_names(std::size_t count,
                                                 const std::set<std::string>& taken,
                                                 bool plain) const {
    const std::set<std::string> folders{path_, beside_};
    const auto is_free = [&](const std::string& name) {
        return !taken.contains(name) &&
               std::none_of(folders.begin(), folders.end(), [&](const std::string& folder) {
                   return is_there(files_, base::join(folder, name));
               });
    };
    std::string tag;
    while (true) {
        if (!plain) {
            tag = fmt::format("{:08x}", base::random_bits() >> 32);
        }
        std::vector<std::string> names;
        for (std::size_t i = 0; i < count; ++i) {
            names.push_back(format::shard_name(stem_, tag, i + 1, count));
        }
        if (std::all_of(names.begin(), names.end(), is_free)) {
            return names;
        }
        plain = false;
    }
}

std::unique_ptr<Replacement> IndexFolder::note(const std::vector<std::string>& shards) const {
    format::ShardIndex record;
    for (const std::string& shard : shards) {
        record.weight_map.emplace_back(fmt::format("{}", record.weight_map.size()), shard);
    }
    auto file = std::make_unique<Replacement>(files_, index_, Abandoned::kLeave);
    const std::string text = base::unwrap(format::render_shard_index(record));
    stream::write_when_room(engine_, file->file(), std::as_bytes(std::span(text)), 0);
    if (sync_) {
        file->file().sync();
    }
    return file;
}

bool IndexFolder::remove(const std::vector<std::string>& shards) const noexcept {
    try {
        remove_unnamed({shards.begin(), shards.end()});
        return true;
    } catch (const std::exception&) {  // optional: errors do not stop the save
        return false;
    }
}

bool IndexFolder::remove_made(std::span<const std::string> shards,
                              const std::string* half) const noexcept {
    try {
        for (const std::string& shard : shards) {
            folder_.remove(shard);
        }
        try {
            if (half != nullptr) {
                folder_.remove(*half);
            }
        } catch (const Error& error) {
            if (!is_gone(error)) {
                return false;
            }
        }
    } catch (const std::exception&) {
        return false;
    }
    try {
        if (sync_) {
            folder_.sync();
        }
    } catch (const std::exception&) {  // a power cut may bring them back, which only wastes space
    }
    return true;
}

void IndexFolder::remove_unnamed(std::set<std::string> shards) const {
    std::erase_if(shards, [](const auto& name) { return !name.ends_with(kShardSuffix); });
    if (shards.empty()) {
        return;
    }
    const std::vector<std::string> names = folder_.list();
    for (const std::string& name : names) {
        if (name.ends_with(kAnyIndexSuffix)) {
            for (const std::string& shard : named_in(in(name))) {
                shards.erase(shard);
            }
        }
    }
    std::set<std::string_view> halves;
    for (const std::string& shard : shards) {
        halves.insert(kept_in_temporary(shard));
    }
    for (const std::string& name : names) {
        if (shards.contains(name)) {
            if (folder_.status(name).kind != FileKind::kFolder) {
                folder_.remove(name);
            }
        } else if (halves.contains(named_by_temporary(name))) {
            remove_abandoned(name);
        }
    }
    if (sync_) {
        folder_.sync();  // before the record that names them is removed
    }
}

void IndexFolder::remove_abandoned(const std::string& name) const {
    try {
        const FileLock mine = files_.lock(in(name));
        folder_.remove(name);
    } catch (const Error&) {  // in use by another save, or not a file
    }
}

}  // namespace penstock::state
