// SPDX-License-Identifier: Apache-2.0
#include "store/keep/store_folder.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/text/hex.hpp"
#include "state/structure/structure.hpp"
#include "store/keep/removal.hpp"
#include "store/manifest/manifest_check.hpp"
#include "stream/checksum.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>

namespace penstock::store {

namespace {

constexpr std::string_view kStepWord = "-step-";
constexpr std::size_t kGenerationDigits = 8;
constexpr std::string_view kShardPrefix = "shard-";
constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::string_view kSlicesSuffix = ".slices.safetensors";
constexpr std::size_t kShardDigits = 5;
constexpr std::string_view kSharePrefix = ".share-";
constexpr std::string_view kStateSuffix = ".state";
constexpr std::string_view kWritersSuffix = ".writers";

std::optional<std::uint64_t> number(std::string_view digits) {
    std::uint64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto read = std::from_chars(digits.data(), end, value);
    const bool good = !digits.empty() && read.ec == std::errc{} && read.ptr == end;
    return good ? std::optional(value) : std::nullopt;
}

// False where that cannot be found out: what cannot be looked at may be there.
bool has_gone(const FileSystem& files, const std::string& path) {
    try {
        return !is_there(files, path);
    } catch (const Error&) {
        return false;
    }
}

std::string note_on(const FileSystem& files, const std::string& folder, const std::string& name) {
    try {
        const std::string why = why_not_own(files.open_folder(folder), name);
        return why.empty() ? "" : why + "; the store neither counts nor removes it";
    } catch (const Error&) {  // only a message; removal looks again
        return {};
    }
}

}  // namespace

bool is_gone(const Error& error) {
    return error.system_errno() == ENOENT || error.system_errno() == ENOTDIR;
}

std::string join(const std::string& folder, std::string_view name) {
    return base::join(folder, name);
}

std::string checkpoint_name(std::uint64_t generation, std::uint64_t step) {
    return fmt::format("{:0{}}{}{}", generation, kGenerationDigits, kStepWord, step);
}

std::optional<CheckpointEntry> parse_checkpoint_name(std::string_view name) {
    const std::size_t word = name.find(kStepWord);
    if (word == std::string_view::npos) {
        return std::nullopt;
    }
    const auto generation = number(name.substr(0, word));
    const auto step = number(name.substr(word + kStepWord.size()));
    // Another spelling is a folder of another program.
    if (!generation || !step || checkpoint_name(*generation, *step) != name) {
        return std::nullopt;
    }
    return CheckpointEntry{std::string(name), *generation, *step};
}

std::string unfinished_name(std::uint64_t generation, std::string_view random) {
    return fmt::format("{}{:0{}}-{}", kUnfinishedPrefix, generation, kGenerationDigits, random);
}

std::string removed_name(std::string_view checkpoint) {
    return fmt::format("{}{}", kRemovedPrefix, checkpoint);
}

std::optional<CheckpointEntry> removed_checkpoint(std::string_view hidden) {
    if (!hidden.starts_with(kRemovedPrefix)) {
        return std::nullopt;
    }
    hidden.remove_prefix(kRemovedPrefix.size());
    auto entry = parse_checkpoint_name(hidden);
    const std::size_t dash = hidden.rfind('-');
    if (!entry && dash != std::string_view::npos && number(hidden.substr(dash + 1))) {
        entry = parse_checkpoint_name(hidden.substr(0, dash));
    }
    return entry;
}

std::optional<std::uint64_t> hidden_generation(std::string_view name) {
    if (name.starts_with(kRemovedPrefix)) {
        const auto entry = removed_checkpoint(name);
        return entry ? std::optional(entry->generation) : std::nullopt;
    }
    if (!name.starts_with(kUnfinishedPrefix)) {
        return std::nullopt;
    }
    const std::string_view rest = name.substr(kUnfinishedPrefix.size());
    const std::size_t dash = std::min(rest.find('-'), rest.size());
    const auto generation = number(rest.substr(0, dash));
    const std::string_view random = rest.substr(std::min(dash + 1, rest.size()));
    std::uint64_t value = 0;
    return generation && base::parse_hex(random, value) &&
                   unfinished_name(*generation, random) == name
               ? generation
               : std::nullopt;
}

std::string shard_name(std::uint64_t number, bool slices) {
    return fmt::format("{}{:0{}}{}", kShardPrefix, number, kShardDigits,
                       slices ? kSlicesSuffix : kShardSuffix);
}

bool is_name_of_slices(std::string_view name) {
    return is_shard_name(name) && name.ends_with(kSlicesSuffix);
}

bool exists(const Error& error) {
    return error.system_errno() == EEXIST || error.system_errno() == ENOTEMPTY ||
           error.system_errno() == ENOTDIR;
}

std::string share_name(std::uint32_t rank) {
    return fmt::format("{}{:0{}}", kSharePrefix, rank, kShardDigits);
}

std::string state_name(std::uint32_t rank) {
    return share_name(rank).append(kStateSuffix);
}

std::string writers_name() {
    return share_name(0).append(kWritersSuffix);
}

bool is_share_name(std::string_view name) {
    for (const std::string_view suffix : {kStateSuffix, kWritersSuffix}) {
        name.remove_suffix(name.ends_with(suffix) ? suffix.size() : 0);
    }
    return name.starts_with(kSharePrefix) && name.size() >= kSharePrefix.size() + kShardDigits &&
           name.find_first_not_of("0123456789", kSharePrefix.size()) == std::string_view::npos;
}

bool is_shard_name(std::string_view name) {
    const std::string_view suffix = name.ends_with(kSlicesSuffix) ? kSlicesSuffix : kShardSuffix;
    if (!name.starts_with(kShardPrefix) || !name.ends_with(suffix) ||
        name.size() < kShardPrefix.size() + kShardDigits + suffix.size()) {
        return false;
    }
    name.remove_prefix(kShardPrefix.size());
    name.remove_suffix(suffix.size());
    return name.find_first_not_of("0123456789") == std::string_view::npos;
}

FolderScan scan_folder(const FileSystem& files, const std::string& folder) {
    try {
        return scan_names(files.list(folder));
    } catch (const Error& error) {
        if (error.system_errno() != ENOENT) {
            throw;
        }
        return {};
    }
}

FolderScan scan_names(std::vector<std::string> names) {
    FolderScan scan;
    const auto seen = [&scan](std::uint64_t generation, const std::string& name) {
        if (generation > scan.generation_max) {
            scan.generation_max = generation;
            scan.newest = name;
        }
    };
    for (std::string& name : names) {
        if (const auto generation = hidden_generation(name)) {
            seen(*generation, name);
            scan.leftovers.push_back(std::move(name));
        } else if (auto entry = parse_checkpoint_name(name)) {
            seen(entry->generation, name);
            scan.checkpoints.push_back(std::move(*entry));
        }
    }
    std::sort(scan.checkpoints.begin(), scan.checkpoints.end(), [](const auto& a, const auto& b) {
        return std::pair(a.generation, a.step) < std::pair(b.generation, b.step);
    });
    return scan;
}

std::vector<CheckpointEntry> of_generation(std::span<const CheckpointEntry> checkpoints,
                                           std::uint64_t generation) {
    std::vector<CheckpointEntry> same;
    std::copy_if(checkpoints.begin(), checkpoints.end(), std::back_inserter(same),
                 [&](const auto& entry) { return entry.generation == generation; });
    return same;
}

std::string why_not_one(std::span<const CheckpointEntry> same) {
    std::string names;
    for (const CheckpointEntry& entry : same) {
        names += fmt::format("{}'{}'", names.empty() ? "" : ", ", entry.name);
    }
    return fmt::format(
        "{} checkpoints have generation {}: {} (was one copied, or moved here, by hand?); move all "
        "but one out of this folder, or read the one that you mean by its path",
        same.size(), same.front().generation, names);
}

File open_part(const FileSystem& files, const std::string& path, const FileOptions& options) {
    try {
        return files.open(path, options);
    } catch (const Error& error) {
        if (error.reason() != ErrorCode::kUnsupported) {
            throw;
        }
        throw Error(ErrorCode::kDamaged, 0, error.operation(), path, kNoOffset, error.what());
    }
}

std::string read_manifest_text(Engine& engine, const FileSystem& files,
                               const std::string& checkpoint, std::string_view name) {
    const std::string path = join(checkpoint, name);
    // Through the page cache: most are small, and a process that lists a store reads them again.
    const File file = open_part(files, path, {.cache = CachePolicy::kCached});
    const std::uint64_t bytes = file.size();
    if (bytes > kManifestBytesMax) {
        base::raise(base::error(
            ErrorCode::kDamaged, "read manifest",
            fmt::format("it has {} bytes, and a manifest has {} at most", bytes, kManifestBytesMax),
            path));
    }
    std::string text(bytes, '\0');
    stream::read_when_room(engine, file, std::as_writable_bytes(std::span(text)), 0);
    return text;
}

Manifest read_manifest(Engine& engine, const FileSystem& files, const std::string& checkpoint) {
    return parse_manifest(read_manifest_text(engine, files, checkpoint),
                          join(checkpoint, kManifestName));
}

std::string shard_path(const Manifest& manifest, const Shard& shard,
                       const std::string& checkpoint) {
    return join(shard.folder == 0 ? checkpoint : manifest.folders.at(shard.folder), shard.file);
}

CheckpointInfo info_of(const Manifest& manifest, const std::string& checkpoint) {
    CheckpointInfo info;
    info.generation = manifest.generation;
    info.step = manifest.step;
    info.path = checkpoint;
    info.saved_unix_ns = manifest.saved_unix_ns;
    info.tensors = manifest.tensors.size();
    for (const Tensor& tensor : manifest.tensors) {
        for (const Slice& slice : tensor.slices) {
            info.tensor_bytes += slice.bytes;
        }
    }
    info.written_bytes = manifest.written_bytes;
    info.metadata = manifest.metadata;
    info.shards = static_cast<std::uint32_t>(manifest.shards.size());
    info.ranks = manifest.world;
    info.linked_shards = static_cast<std::uint32_t>(
        std::count_if(manifest.shards.begin(), manifest.shards.end(),
                      [&](const Shard& shard) { return shard.generation != manifest.generation; }));
    return info;
}

std::string missing_shard(const FileSystem& files, const Manifest& manifest,
                          const std::string& checkpoint) {
    for (const Shard& shard : manifest.shards) {
        // Uses its name in the checkpoint's folder, as readers do: the store may have been moved.
        std::string path = join(checkpoint, shard.file);
        std::string shown = shard.file;
        FileStatus status;
        try {
            if (shard.folder != 0) {
                path = shown = files.resolve(path);
            }
            status = files.status(path);
        } catch (const Error& error) {
            if (!is_gone(error)) {
                throw;
            }
            return fmt::format("{} is missing", shown);
        }
        if (status.kind != FileKind::kFile) {
            return fmt::format("{} is not a file", shown);
        }
        if (status.bytes != shard.bytes) {
            return fmt::format("{} has {} bytes; it was written with {}", shown, status.bytes,
                               shard.bytes);
        }
    }
    return {};
}

std::optional<Inspected> inspect(Engine& engine, const FileSystem& files, const std::string& folder,
                                 const CheckpointEntry& entry) {
    const std::string path = join(folder, entry.name);
    Inspected found;
    try {
        const std::string text = read_manifest_text(engine, files, path);
        found.manifest_hash = stream::content_hash(std::as_bytes(std::span(text)));
        found.manifest = parse_manifest(text, join(path, kManifestName));
        found.info = info_of(found.manifest, path);
        found.info.problem = missing_shard(files, found.manifest, path);
        if (found.info.problem.empty()) {
            found.info.problem = wrong_structure(found.manifest);
        }
        if (found.manifest.generation != entry.generation || found.manifest.step != entry.step) {
            found.info.problem = fmt::format(
                "its manifest is of generation {}, step {}: the folder was renamed, or files of "
                "two checkpoints are mixed",
                found.manifest.generation, found.manifest.step);
        }
    } catch (const Error& error) {
        found.info.problem = error.reason() == ErrorCode::kSystem && is_gone(error)
                                 ? fmt::format("{} is missing", kManifestName)
                                 : error.what();
        found.error = error;
    }
    found.info.generation = entry.generation;
    found.info.step = entry.step;
    found.info.path = path;
    if (!found.info.problem.empty() && has_gone(files, path)) {
        return std::nullopt;
    }
    found.info.note = note_on(files, folder, entry.name);
    try {
        found.info.pinned = is_there(files, join(path, kPinnedName));
    } catch (const Error& error) {
        if (found.info.problem.empty()) {
            found.info.note = fmt::format("whether it is pinned is not known: {}", error.what());
        }
    }
    return found;
}

bool may_concern_it_alone(const Error& error) {
    switch (error.system_errno()) {
        case EMFILE:
        case ENFILE:
        case ENOMEM:
        case ENOBUFS:
        case EAGAIN:
        case EINTR:
            return false;
        default:
            return error.reason() == ErrorCode::kSystem ||
                   error.reason() == ErrorCode::kUnsupported || error.is_about_the_file();
    }
}

Error explained_rename(const Error& error) {
    const int number = error.system_errno();
    if (error.operation() != "rename" ||
        (number != ENOSYS && number != EOPNOTSUPP && number != EXDEV)) {
        return error;
    }
    return {error.reason(),
            number,
            error.operation(),
            error.path(),
            error.offset(),
            fmt::format("{}. A checkpoint gets its name with a rename, so that readers see all of "
                        "it or none, and this file system does not rename it. Keep the store on a "
                        "local disk, and copy its checkpoints: each folder is whole",
                        error.what())};
}

bool is_there(const FileSystem& files, const std::string& path) {
    try {
        static_cast<void>(files.status(path));
        return true;
    } catch (const Error& error) {
        if (is_gone(error)) {
            return false;
        }
        throw;
    }
}

void make_folders(const FileSystem& files, const std::string& folder) {
    std::vector<std::string> missing;
    for (std::string at = folder; at != "/" && !is_there(files, at); at = base::folder_of(at)) {
        missing.push_back(at);
    }
    for (auto at = missing.rbegin(); at != missing.rend(); ++at) {
        try {
            files.make_folder(*at);
        } catch (const Error& error) {
            if (error.system_errno() != EEXIST) {
                throw;
            }
        }
        files.sync_folder(base::folder_of(*at));
    }
}

void check_folder(const FileSystem& files, const std::string& path) {
    if (is_there(files, path) && files.status(path).kind != FileKind::kFolder) {
        base::raise(base::system_error(ENOTDIR, "open checkpoint store", path, kNoOffset,
                                       "it is a file; give the path of a folder, which need not "
                                       "be there"));
    }
}

}  // namespace penstock::store
