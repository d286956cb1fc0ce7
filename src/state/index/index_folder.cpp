// SPDX-License-Identifier: Apache-2.0
#include "state/index/index_folder.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/random.hpp"
#include "state/update/update_log.hpp"
#include "stream/checksum.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

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
constexpr std::uint64_t kHeadBytes = 64;
constexpr std::size_t kTagDigits = 8;
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
      index_(files_.resolve(with_possible_name(path))),
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

// Nothing where there is no such file, or no index in it.
std::optional<format::ShardIndex> IndexFolder::index_in(const std::string& path) const {
    try {
        // Opening a pipe would wait for its writer.
        if (files_.status(files_.resolve(path)).kind != FileKind::kFile) {
            return std::nullopt;
        }
        const File file = files_.open(path, {.cache = CachePolicy::kCached});
        if (!may_be_json(file)) {
            return std::nullopt;
        }
        std::string text(std::min(file.size(), format::kShardIndexBytesMax + 1), '\0');
        stream::read_when_room(engine_, file, std::as_writable_bytes(std::span(text)), 0);
        auto index = format::parse_shard_index(text);
        return index ? std::optional(std::move(*index)) : std::nullopt;
    } catch (const Error& error) {
        if (is_gone(error) || error.reason() == ErrorCode::kEndOfFile) {
            return std::nullopt;
        }
        throw;
    }
}

// A shard on its way has the name of a record, and is large (streamed/streamed_index.hpp).
bool IndexFolder::may_be_json(const File& file) const {
    std::string head(std::min<std::uint64_t>(file.size(), kHeadBytes), '\0');
    stream::read_when_room(engine_, file, std::as_writable_bytes(std::span(head)), 0);
    const std::size_t first = head.find_first_not_of(" \t\r\n");
    return first == std::string::npos || head[first] == '{';
}

std::vector<std::string> IndexFolder::named_in(const std::string& path) const {
    std::set<std::string> names;
    if (auto index = index_in(path)) {
        for (auto& [tensor, name] : index->weight_map) {
            names.insert(std::move(name));
        }
    }
    return {names.begin(), names.end()};
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

std::string IndexFolder::mark_of(std::span<const std::string> shards,
                                 std::span<const std::uint64_t> bytes) const {
    std::vector<std::string> rows;
    for (std::size_t i = 0; i < shards.size(); ++i) {
        rows.push_back(fmt::format("{} {}\n", bytes[i], shards[i]));
    }
    std::sort(rows.begin(), rows.end());
    const std::string text = fmt::format("{}\n{}", base::last_name(index_), fmt::join(rows, ""));
    return fmt::format("{:016x}", stream::content_hash(std::as_bytes(std::span(text))));
}

std::vector<std::string> IndexFolder::own_shards() const {
    const std::vector<std::string> names = shards();
    const auto index = names.empty() || !folder_.is_open() ? std::nullopt : index_in(index_);
    if (!index || index->mark.empty()) {
        return {};
    }
    std::vector<std::uint64_t> bytes;
    for (const std::string& name : names) {
        try {
            const FileStatus status = folder_.status(name);
            if (!format::is_shard_name(name, stem_) || status.kind != FileKind::kFile) {
                return {};
            }
            bytes.push_back(status.bytes);
        } catch (const Error& error) {
            if (!is_gone(error)) {
                throw;
            }
            return {};
        }
    }
    return mark_of(names, bytes) == index->mark ? names : std::vector<std::string>();
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
    // With the tag, which a later save of the index will need.
    const std::string longest =
        format::shard_name(stem_, std::string(kTagDigits, '0'), count, count);
    if (longest.size() > base::kNameBytesMax) {
        const std::size_t own = base::last_name(index_).size();
        base::raise(base::system_error(
            ENAMETOOLONG, "save", index_, kNoOffset,
            fmt::format("the names of its shards would have {} bytes, and a name has at most {}; "
                        "give the index a shorter name, of at most {} bytes",
                        longest.size(), base::kNameBytesMax,
                        own - (longest.size() - base::kNameBytesMax))));
    }
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
            tag = fmt::format("{:0{}x}", base::random_bits() >> 32, kTagDigits);
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
    const std::vector<std::pair<std::string, std::string>> no_rows;
    for (const std::string& name : names) {
        if (!name.ends_with(kAnyIndexSuffix)) {
            continue;
        }
        const auto index = index_in(in(name));
        if (!index && name.ends_with(format::kIndexSuffix)) {
            base::raise(base::error(ErrorCode::kDamaged, "remove old shards",
                                    "it cannot be read, and may name them", in(name)));
        }
        for (const auto& [tensor, shard] : index ? index->weight_map : no_rows) {
            shards.erase(shard);
        }
    }
    std::set<std::string_view> halves;
    for (const std::string& shard : shards) {
        halves.insert(kept_in_temporary(shard));
    }
    for (const std::string& name : names) {
        const bool is_log = name.ends_with(kUpdateSuffix);  // of an update of a shard
        if (shards.contains(is_log ? name.substr(0, name.size() - kUpdateSuffix.size()) : name)) {
            const bool is_file = folder_.status(name).kind == FileKind::kFile;
            // Any other file of the name of a log is the user's.
            if (is_file && (!is_log || files_.begins_with(in(name), kUpdateMagic))) {
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
