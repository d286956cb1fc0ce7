// SPDX-License-Identifier: Apache-2.0
// One save, under the store's lock, in three calls:
//
//     SavePlan plan = plan_save(...)       which tensors changed; which shards are linked, which
//                                          are written, and with what in them. Writes nothing
//     WrittenShards written =              a folder of a name that no reader looks at; links; is
//         write_shards(..., plan, ...)     there room? Nothing is written before that is known.
//                                          Shards, each preallocated, written, made durable; sums,
//                                          index and manifest are made meanwhile, and are written
//                                          and durable like them; the shards' times
//     commit(written)                      the folders' names durable; rename to the name that
//                                          readers look for; its parent durable
//
// In which order the files of the second become durable is of no account: nobody looks for them
// before the third. Whatever fails before the end of the third: WrittenShards takes everything away
// with itself, and what was there before stays.
#pragma once

#include "store/chunk_sums.hpp"
#include "store/manifest.hpp"
#include "store/save_plan.hpp"
#include "store/unfinished.hpp"
#include "stream/progress_clock.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::store {

/// Of the store; outlives the save.
struct SaveContext {
    Engine& engine;
    const FileSystem& files;
    const std::vector<std::string>& folders;
    const StoreOptions& options;
    std::function<std::uint64_t()> random;
    std::vector<double>& speeds;  ///< of each folder, bytes a second; 0: not known
};

/// The sums of a state's chunks, or nothing where the store has no checksums. Begun by plan_save(),
/// which needs them to see what changed; write_shards() hashes the rest.
using StateSums = std::optional<ChunkSums>;

/// Durable, and all of a checkpoint but its name.
struct WrittenShards {
    std::unique_ptr<UnfinishedCheckpoint> folder;
    Manifest manifest;
    std::uint64_t manifest_hash = 0;  ///< stream::content_hash() of its text
    std::string note;                 ///< empty, or what was out of the ordinary
};

/// Throws Error.
[[nodiscard]] SavePlan plan_save(const SaveContext& context, const State& state,
                                 const SaveOptions& options, const LastCheckpoint& last,
                                 std::uint64_t generation, StateSums& sums,
                                 stream::ProgressClock& progress);
/// Throws Error; then nothing is left of it.
[[nodiscard]] WrittenShards write_shards(const SaveContext& context, SavePlan&& plan,
                                         StateSums& sums, stream::ProgressClock& progress);
/// The folder that it is now. Throws Error; then nothing is left of it.
[[nodiscard]] std::string commit(WrittenShards& written);

}  // namespace penstock::store
