// SPDX-License-Identifier: Apache-2.0
// One save, under the store's lock:
//
//     SavePlan plan = plan_save(...)       decides which tensors changed, which shards are linked,
//                                          and which are written with what in them. Writes nothing
//     place_shards(..., plan)              checks the room before anything is written
//     UnfinishedCheckpoint folder          makes a folder of a name that no reader looks at
//     WrittenShards written =              links; shards, each preallocated, written, made durable;
//         write_shards(..., plan, ...)     sums, index and manifest are made meanwhile, and are
//                                          written and durable like them; the shards' times
//     commit(folder)                       the folders' names durable; rename to the name that
//                                          readers look for; its parent durable
//
// The order in which the files of write_shards() become durable does not matter: no reader looks
// for them before commit(). If anything fails before its end, UnfinishedCheckpoint removes
// all that it made, and older checkpoints stay. A failure after that (retention, lack of memory) is
// at most a note: the checkpoint exists, and save() reports it.
#pragma once

#include "store/identity/ownership.hpp"
#include "store/keep/store_folder.hpp"
#include "store/keep/unfinished.hpp"
#include "store/manifest/manifest.hpp"
#include "store/write/chunk_sums.hpp"
#include "store/write/save_plan.hpp"
#include "stream/progress_clock.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {

/// Parts of the store that a save uses; outlives the save.
struct SaveContext {
    Engine& engine;
    const FileSystem& files;
    const std::vector<std::string>& folders;
    const StoreOptions& options;
    std::function<std::uint64_t()> random;
    std::vector<double>& speeds;  ///< of each folder, bytes a second; 0: not known
    const std::string& store;     ///< the identity of the store
    const std::string& place;     ///< the path of a store of one checkpoint; empty: numbered ones

    /// The path of a checkpoint of that name.
    [[nodiscard]] std::string named_path(const std::string& name) const {
        return place.empty() ? join(folders.front(), name) : place;
    }
};

/// The sums of a state's chunks, or nothing if the store has no checksums. Begun by plan_save(),
/// which needs them to see what changed; write_shards() has those of what is written.
using StateSums = std::optional<ChunkSums>;

/// Shards that are durable, with their metadata.
struct WrittenShards {
    Manifest manifest;
    std::uint64_t manifest_hash = 0;  ///< stream::content_hash() of its text
    std::string note;                 ///< empty, or anything out of the ordinary
};

[[nodiscard]] std::int64_t now_unix_ns();
/// Does nothing if `more` is empty.
void append_note(std::string& note, std::string_view more);
/// Calls something that must not make the save fail, above all after its commit. Its failure is
/// noted, if there is memory for a note.
template <typename Call>
void note_failure(std::string& note, std::string_view what, Call call) {
    try {
        try {
            call();
        } catch (const std::exception& error) {
            append_note(note, std::string(what) + ": " + error.what());
        }
    } catch (const std::bad_alloc&) {
        return;
    }
}
/// Decides what a save does. Throws Error.
[[nodiscard]] SavePlan plan_save(const SaveContext& context, const State& state,
                                 const SaveOptions& options, const LastCheckpoint& last,
                                 std::uint64_t generation, StateSums& sums,
                                 stream::ProgressClock& progress, ShareOfRank share = {});
/// Bytes that the plan needs in each of the store's folders. Chooses the folder of each shard.
/// Throws ENOSPC where there is no room.
[[nodiscard]] std::vector<std::uint64_t> place_shards(const SaveContext& context, SavePlan& plan);
/// Writes the shards, after place_shards(), and metadata into `folder`. Throws Error.
[[nodiscard]] WrittenShards write_shards(const SaveContext& context, SavePlan&& plan,
                                         UnfinishedFolder& folder, StateSums& sums,
                                         stream::ProgressClock& progress);
/// Gives the checkpoint its final name. Throws Error; then, unless it is shared, nothing is left of
/// it (give_name()).
void commit(UnfinishedCheckpoint& folder, bool shared = false);

}  // namespace penstock::store
