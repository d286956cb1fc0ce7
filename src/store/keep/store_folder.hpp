// SPDX-License-Identifier: Apache-2.0
// The entries of a store's folder, by name:
//
//   00000012-step-100/            a checkpoint: generation, the caller's step
//   .unfinished-00000013-<hex>/   one that is being written, or that a killed process left
//   .removed-00000002-step-20/    one on its way out
//   .removed-00000002-step-20/    one that is being removed
//
// and, in a store's other folders, 00000012-step-100.<24 hex>/ with the shards that lie there.
#pragma once

#include "store/manifest/manifest.hpp"

#include <penstock/checkpoint.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {

inline constexpr std::string_view kUnfinishedPrefix = ".unfinished-";
inline constexpr std::string_view kRemovedPrefix = ".removed-";
inline constexpr std::string_view kLockName = ".lock";
inline constexpr std::string_view kPinnedName = "pinned";

struct CheckpointEntry {
    std::string name;
    std::uint64_t generation = 0;
    std::uint64_t step = 0;
};

inline constexpr std::uint64_t kGenerationMax = UINT64_MAX;

struct FolderScan {
    std::vector<CheckpointEntry> checkpoints;  ///< by rising generation, then step
    std::vector<std::string> leftovers;        ///< unfinished and removed ones
    std::uint64_t generation_max = 0;          ///< of all of them
    std::string newest;                        ///< the name that has it
};

/// Whether nothing has the name, or what should be a folder on the way is a file.
[[nodiscard]] bool is_gone(const Error& error);

[[nodiscard]] std::string join(const std::string& folder, std::string_view name);
[[nodiscard]] std::string checkpoint_name(std::uint64_t generation, std::uint64_t step);
/// Nothing for a name that checkpoint_name() does not make.
[[nodiscard]] std::optional<CheckpointEntry> parse_checkpoint_name(std::string_view name);
[[nodiscard]] std::string unfinished_name(std::uint64_t generation, std::string_view random);
[[nodiscard]] std::string removed_name(std::string_view checkpoint);
/// The name that a removed one had ("-2" and so on may follow it); nothing for any other name.
[[nodiscard]] std::optional<CheckpointEntry> removed_checkpoint(std::string_view hidden);
/// The generation of an unfinished or removed one; nothing for a name that the two above do not
/// make.
[[nodiscard]] std::optional<std::uint64_t> hidden_generation(std::string_view name);

/// Whether a name could not be given or taken away because of what is there.
[[nodiscard]] bool exists(const Error& error);

/// "shard-00007.safetensors". "shard-00007.slices.safetensors" has slices under the names of their
/// tensors; earlier saves gave them names of their own, and the file the first of these names.
[[nodiscard]] std::string shard_name(std::uint64_t number, bool slices = false);
/// Whether it is the second of these names.
[[nodiscard]] bool is_name_of_slices(std::string_view name);
[[nodiscard]] bool is_shard_name(std::string_view name);
/// ".share-00002": what a rank wrote, until the manifest has it.
[[nodiscard]] std::string share_name(std::uint32_t rank);
/// ".share-00002.state": what a rank would save, where it is not what rank 0 would.
[[nodiscard]] std::string state_name(std::uint32_t rank);
/// ".share-00000.writers": which rank writes what, where not all have the same.
[[nodiscard]] std::string writers_name();
/// Whether it is one of these three.
[[nodiscard]] bool is_share_name(std::string_view name);

[[nodiscard]] FolderScan scan_names(std::vector<std::string> names);
/// The checkpoints of a generation: none, one, or, where a folder was copied or renamed by hand,
/// several.
[[nodiscard]] std::vector<CheckpointEntry> of_generation(
    std::span<const CheckpointEntry> checkpoints, std::uint64_t generation);
/// Why a number does not say which of them is meant, with the cure.
[[nodiscard]] std::string why_not_one(std::span<const CheckpointEntry> same);
/// Lists a folder. A folder that does not exist is empty.
[[nodiscard]] FolderScan scan_folder(const FileSystem& files, const std::string& folder);

/// Opens a file of a checkpoint, for reading. Throws Error; kDamaged if a pipe or the like is in
/// its place.
[[nodiscard]] File open_part(const FileSystem& files, const std::string& path,
                             const FileOptions& options = {});
/// Throws Error. `name`: of a file with a manifest.
[[nodiscard]] std::string read_manifest_text(Engine& engine, const FileSystem& files,
                                             const std::string& checkpoint,
                                             std::string_view name = kManifestName);
/// Throws Error; kDamaged if it cannot be parsed.
[[nodiscard]] Manifest read_manifest(Engine& engine, const FileSystem& files,
                                     const std::string& checkpoint);
/// The path of a shard's bytes.
[[nodiscard]] std::string shard_path(const Manifest& manifest, const Shard& shard,
                                     const std::string& checkpoint);
/// The contents of a manifest, without looking at its shards.
[[nodiscard]] CheckpointInfo info_of(const Manifest& manifest, const std::string& checkpoint);
/// Empty, or which shard is missing or has another size. Throws Error if that cannot be found out.
[[nodiscard]] std::string missing_shard(const FileSystem& files, const Manifest& manifest,
                                        const std::string& checkpoint);

/// False for what this process or machine lacks at the moment (open files, memory), and for a call
/// that was stopped: another checkpoint would meet the same. Any other error may be one of this
/// checkpoint alone, and costs no other one.
[[nodiscard]] bool may_concern_it_alone(const Error& error);

/// A checkpoint that may be whole, and that the system does not give now.
enum class Unreadable : std::uint8_t { kThrow, kPassOver };

struct Inspected {
    CheckpointInfo info;
    Manifest manifest;                ///< empty if it could not be read
    std::uint64_t manifest_hash = 0;  ///< stream::content_hash() of its text
    std::optional<Error> error;       ///< the cause of a problem, if there is one

    /// Whether another checkpoint is looked at in spite of the error.
    [[nodiscard]] bool is_passed_over(Unreadable unreadable) const {
        return error->is_about_the_file() ||
               (unreadable == Unreadable::kPassOver && may_concern_it_alone(*error));
    }
    /// Whether the system refused to give it: it may be whole.
    [[nodiscard]] bool is_refused() const {
        const int number = error ? error->system_errno() : 0;
        return number != 0 && number != ENOENT && number != ENOTDIR;
    }
};
/// Never throws for a checkpoint that cannot be used: info.problem says why. Nothing when the
/// folder is gone (the process that writes the store removed it meanwhile).
[[nodiscard]] std::optional<Inspected> inspect(Engine& engine, const FileSystem& files,
                                               const std::string& folder,
                                               const CheckpointEntry& entry);
/// The result of a search from the newest checkpoint back.
struct Newest {
    std::optional<Inspected> found;
    std::vector<CheckpointInfo> passed_over;  ///< newer ones, with the reason
    std::optional<Error> refused;  ///< the first that the system refused: all of them may be sound

    [[nodiscard]] bool has_passed_over(const std::string& path) const {
        return std::any_of(passed_over.begin(), passed_over.end(),
                           [&](const auto& info) { return info.path == path; });
    }
    void pass_over(Inspected&& one) {
        passed_over.push_back(std::move(one.info));
        if (!refused && one.is_refused()) {
            refused = one.error;
        }
    }
};
/// The same error; of a rename that a file system lacks (object stores behind FUSE) with what to
/// do.
[[nodiscard]] Error explained_rename(const Error& error);
[[nodiscard]] bool is_there(const FileSystem& files, const std::string& path);
/// Makes a folder and its missing parents, each durable before the next one. Several processes may
/// make the same ones concurrently.
void make_folders(const FileSystem& files, const std::string& folder);
/// Throws an Error with ENOTDIR if the path, or a parent, exists and is no folder.
void check_folder(const FileSystem& files, const std::string& path);

}  // namespace penstock::store
