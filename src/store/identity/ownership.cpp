// SPDX-License-Identifier: Apache-2.0
#include "store/identity/ownership.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/random.hpp"
#include "store/identity/parts_name.hpp"
#include "store/keep/store_folder.hpp"
#include "stream/checksum.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <span>
#include <utility>

namespace penstock::store {

namespace {

constexpr std::string_view kTemporarySuffix = ".tmp";
// Oldest ones are forgotten beyond these: what lies under them is then left.
constexpr std::size_t kBeforeMax = 16;
constexpr std::size_t kRecordsMax = 32;

std::uint64_t random_word() {
    const std::uint64_t word = base::random_bits();
    return word == 0 ? 1 : word;
}

std::uint64_t hash_of(const std::string& path) {
    return stream::content_hash(std::as_bytes(std::span(path)));
}

FilePlace place_of(const FileStatus& status, const std::string& folder) {
    return {.inode = status.inode, .device = status.device, .path_hash = hash_of(folder)};
}

struct SmallText {
    std::string text;
    FileStatus status;
};

// Nothing where there is no such file. Throws Error; ELOOP for a symbolic link.
std::optional<SmallText> read_small(Engine& engine, const FileSystem& files,
                                    const std::string& path) {
    try {
        const File file = open_part(files, path, {.follow = false, .cache = CachePolicy::kCached});
        SmallText out{.text = {}, .status = file.status()};
        out.text.resize(std::min(file.size(), kIdentityBytesMax));
        stream::read_when_room(engine, file, std::as_writable_bytes(std::span(out.text)), 0);
        return out;
    } catch (const Error& error) {
        if (is_gone(error)) {
            return std::nullopt;
        }
        throw;
    }
}

// Replaces a file of a folder, durably. No link is followed. `text_of` knows the new file.
void replace_small(Engine& engine, const FileSystem& files, const std::string& folder,
                   const std::string& name,
                   const std::function<std::string(const FileStatus&)>& text_of) {
    const Folder opened = files.open_folder(folder);
    const std::string temporary =
        fmt::format("{}.{:016x}{}", name, base::random_bits(), kTemporarySuffix);
    bool is_made = false;
    try {
        File file = files.open(join(folder, temporary), {.access = Access::kWrite,
                                                         .create = true,
                                                         .exclusive = true,
                                                         .follow = false,
                                                         .cache = CachePolicy::kCached});
        is_made = true;
        const std::string text = text_of(file.status());
        stream::write_when_room(engine, file, std::as_bytes(std::span(text)), 0);
        file.sync_data();
        file.close();
        opened.rename(temporary, name);
    } catch (const Error& error) {
        try {
            if (is_made) {
                opened.remove(temporary);
            }
        } catch (const Error&) {  // the next save removes it
        }
        throw explained_rename(error);
    }
    opened.sync();
}

// Removes what killed processes left of replace_small().
void remove_temporaries(const FileSystem& files, const std::string& folder,
                        const std::string& name) {
    try {
        const Folder opened = files.open_folder(folder);
        const std::string prefix = name + ".";
        for (const std::string& found : opened.list()) {
            if (found.starts_with(prefix) && found.ends_with(kTemporarySuffix) &&
                opened.status(found).kind == FileKind::kFile) {
                opened.remove(found);
            }
        }
    } catch (const Error&) {  // they only take space
    }
}

}  // namespace

std::optional<StoreIdentity> known_identity(Engine& engine, const FileSystem& files,
                                            const std::string& folder) {
    try {
        const auto found = read_small(engine, files, join(folder, kIdentityName));
        return found ? parse_identity(found->text) : std::nullopt;
    } catch (const Error&) {
        return std::nullopt;
    }
}

bool is_own(const StoreIdentity& store, std::string_view manifest_identity) {
    return manifest_identity.empty() || manifest_identity == store.identity ||
           std::find(store.before.begin(), store.before.end(), manifest_identity) !=
               store.before.end();
}

void Ownership::begin(std::uint64_t generation) {
    notes_.clear();
    const bool several = folders_.size() > 1;
    if (known_ && !several) {
        return;
    }
    bool must_write = !read_identity();
    found_.assign(folders_.size(), {});
    held_.assign(folders_.size(), {});
    const auto look_at_all = [this] {
        for (std::size_t i = 1; i < folders_.size(); ++i) {
            found_[i] = look(i);
        }
    };
    look_at_all();
    const bool foreign = std::any_of(found_.begin(), found_.end(), [](const auto& one) {
        return one.finding == Finding::kForeign;
    });
    if (several && (foreign || !is_at_its_place_)) {
        take_new_identity(foreign ? "another copy of this store saved there"
                                  : "this store was copied, restored or moved to another disk");
        look_at_all();
        must_write = true;
    }
    if (several) {
        for (const std::string& before : mine_.before) {
            give_up(before);
        }
        announce(generation, must_write);
    } else if (must_write) {
        write_identity();
    }
    known_ = true;
}

// False: there is no identity yet, and mine_ is a new one.
bool Ownership::read_identity() {
    const std::string path = join(folders_.front(), kIdentityName);
    const auto found = read_small(engine_, files_, path);
    auto read = found ? parse_identity(found->text) : std::nullopt;
    is_at_its_place_ = true;
    if (!read) {
        if (found) {
            notes_.push_back(fmt::format(
                "'{}' is damaged, so this store has a new identity; checkpoints and shards of the "
                "old one are left, delete them yourself when you need them no more",
                path));
        }
        mine_ = {.identity = make_identity(), .before = {}, .place = {}, .records = {}};
        return false;
    }
    mine_ = std::move(*read);
    // Under one lock the folder stays the same. Some FUSE file systems change inodes meanwhile.
    is_at_its_place_ = known_ || (found->status.links <= 1 &&
                                  mine_.place.is_same(place_of(found->status, folders_.front())));
    return true;
}

void Ownership::write_identity() {
    const std::string& folder = folders_.front();
    remove_temporaries(files_, folder, std::string(kIdentityName));
    replace_small(engine_, files_, folder, std::string(kIdentityName),
                  [&](const FileStatus& status) {
                      mine_.place = place_of(status, folder);
                      return render(mine_);
                  });
}

// Whether parts of this identity lie in a folder.
bool Ownership::has_parts(std::size_t folder) const {
    const std::vector<std::string> names = files_.list(folders_[folder]);
    return std::any_of(names.begin(), names.end(), [this](const std::string& name) {
        return identity_of_parts(name) == mine_.identity;
    });
}

Ownership::FolderFinding Ownership::look(std::size_t folder) {
    FolderFinding out;
    try {
        const auto found =
            read_small(engine_, files_, join(folders_[folder], record_name(mine_.identity)));
        if (!found) {
            out.finding = !is_there(files_, folders_[folder]) ? Finding::kMissing
                          : has_parts(folder)                 ? Finding::kForeign
                                                              : Finding::kNew;
            return out;
        }
        const auto record = parse_record(found->text);
        out.finding = Finding::kForeign;
        if (!record || record->identity != mine_.identity) {
            return out;
        }
        const auto words =
            std::find_if(mine_.records.begin(), mine_.records.end(),
                         [&](const RecordWords& known) { return known.has(record->word); });
        if (words != mine_.records.end()) {
            out = {.finding = Finding::kOwn,
                   .words = static_cast<std::size_t>(words - mine_.records.begin()),
                   .word = record->word};
        }
    } catch (const Error& error) {
        if (error.system_errno() == ELOOP || error.reason() == ErrorCode::kDamaged ||
            error.reason() == ErrorCode::kEndOfFile) {
            out.finding = Finding::kForeign;
            return out;
        }
        out.finding = Finding::kUnknown;
        notes_.push_back(fmt::format(
            "nothing is removed in '{}', for the record of this store there cannot be read: {}",
            folders_[folder], error.what()));
    }
    return out;
}

// Shards under the old identity in other folders are nobody's from here on: another copy of this
// store may lead to them.
void Ownership::take_new_identity(std::string_view why) {
    std::string where;
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        const Finding finding = found_[i].finding;
        if (finding != Finding::kMissing && finding != Finding::kNew) {
            where += fmt::format("{}'{}'", where.empty() ? "" : ", ", folders_[i]);
        }
    }
    if (!where.empty()) {
        notes_.push_back(fmt::format(
            "shards of earlier checkpoints in {} are left when their checkpoints go: {}. They are "
            "in folders with {} in their names; delete those yourself when no checkpoint of any "
            "copy links to them. What is saved from now on is removed as always",
            where, why, mine_.identity));
    }
    give_up(mine_.identity);
    mine_.before.push_back(std::exchange(mine_.identity, make_identity()));
    if (mine_.before.size() > kBeforeMax) {
        mine_.before.erase(mine_.before.begin());
    }
    mine_.records.clear();
}

// Takes the word from the records of an identity, for all copies that have it.
void Ownership::give_up(const std::string& identity) {
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        try {
            const auto found =
                read_small(engine_, files_, join(folders_[i], record_name(identity)));
            const auto record = found ? parse_record(found->text) : std::nullopt;
            if (record && record->word != 0) {
                write_record(i,
                             {.identity = identity, .generation = record->generation, .word = 0});
            }
        } catch (const Error&) {  // tried again at the next save
        }
    }
}

void Ownership::announce(std::uint64_t generation, bool must_write) {
    std::vector<RecordWords> next(folders_.size());
    std::vector<RecordWords> records = mine_.records;
    std::vector<std::size_t> used;
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        const FolderFinding& found = found_[i];
        if (found.finding == Finding::kOwn) {
            held_[i] = {.last = found.word, .next = 0};
            next[i] = {.last = found.word, .next = random_word()};
            records[found.words] = {};  // goes to the end: the newest are kept
        } else if (found.finding == Finding::kNew) {
            next[i] = {.last = 0, .next = random_word()};
        }
    }
    std::erase_if(records, [](const RecordWords& words) { return words.last + words.next == 0; });
    std::copy_if(next.begin(), next.end(), std::back_inserter(records),
                 [](const RecordWords& words) { return words.next != 0; });
    const std::size_t surplus = records.size() - std::min(records.size(), kRecordsMax);
    records.erase(records.begin(), records.begin() + static_cast<std::ptrdiff_t>(surplus));
    mine_.records = std::move(records);
    try {
        write_identity();
    } catch (const Error& error) {
        if (must_write) {
            throw;
        }
        notes_.push_back(
            fmt::format("the record of this save could not be written: {}", error.what()));
        return;  // the records keep the words that the file on the disk knows
    }
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        if (next[i].next == 0) {
            continue;
        }
        held_[i] = next[i];
        try {
            write_record(
                i, {.identity = mine_.identity, .generation = generation, .word = next[i].next});
        } catch (const Error& error) {
            notes_.push_back(
                fmt::format("the record of this save could not be written: {}", error.what()));
        }
    }
}

void Ownership::write_record(std::size_t folder, const FolderRecord& record) const {
    const std::string name = record_name(record.identity);
    remove_temporaries(files_, folders_[folder], name);
    replace_small(engine_, files_, folders_[folder], name,
                  [&](const FileStatus&) { return render(record); });
}

bool Ownership::holds(std::size_t folder) const {
    const auto found =
        read_small(engine_, files_, join(folders_[folder], record_name(mine_.identity)));
    const auto record = found ? parse_record(found->text) : std::nullopt;
    return record && record->identity == mine_.identity && held_[folder].has(record->word);
}

}  // namespace penstock::store
