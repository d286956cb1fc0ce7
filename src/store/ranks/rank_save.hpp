// SPDX-License-Identifier: Apache-2.0
// One save by all ranks. Rank 0 leads, under the store's lock; the others follow. Blocking.
//
//     rank 0                                          each other rank
//     names the checkpoint, makes its folders: offer
//                                                     finds those folders in its own view of the
//                                                     disk; says what it has: state
//     compares, and joins what is not the same; says
//     who writes what: assigned
//                                                     plans; says what it needs: ready
//     checks room for the sum: go
//     writes its share                                writes its share: shards, durable; written
//     reads all shares, looks at each shard, checks
//     that slices tile each tensor; manifest; sync
//     rename to the final name; sync: verdict         returns it
//
// The rename is the verdict, also for a rank that hears nothing. Such a rank renames the unfinished
// folder away: if that works, nobody can commit it any more, also not a rank 0 that was only
// stopped, and the save has failed. If it is not there, and the final name has this save, the save
// is there: the rank makes the name durable and returns. So all ranks come to one answer, with rank
// 0 or without it.
#pragma once

#include "ranks/conversation.hpp"
#include "store/keep/unfinished.hpp"
#include "store/ranks/rank_messages.hpp"
#include "store/write/save.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

namespace penstock::store {

/// Leads a save up to its commit. `folder`: empty. Throws Error; the caller then tells it to the
/// others, and removes the folder.
[[nodiscard]] WrittenShards lead_save(ranks::Conversation& talk, const ranks::Group& group,
                                      const SaveContext& context, const State& state,
                                      const SaveOptions& options, const LastCheckpoint& last,
                                      std::uint64_t generation, UnfinishedCheckpoint& folder);

/// Follows a save to its verdict. `last`: what this rank knows of the checkpoint to link from; kept
/// for the next save. `begin`: called first. Throws the error that all ranks throw, or what a
/// function of the caller's threw.
[[nodiscard]] CheckpointInfo follow_save(ranks::Conversation& talk, const ranks::Group& group,
                                         const SaveContext& context, const State& state,
                                         const SaveOptions& options, LastCheckpoint& last,
                                         const std::function<void()>& begin);

/// The form in which an exception of any type is told to the other ranks.
[[nodiscard]] Error error_of(const std::exception_ptr& thrown, const char* operation = kRankSave);

}  // namespace penstock::store
