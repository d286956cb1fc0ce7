// SPDX-License-Identifier: Apache-2.0
// How the ranks of a save tell each other what they have, where that is not the same. Descriptions
// may be large, so they go through the unfinished folder; they are gone before its last name.
#pragma once

#include "ranks/conversation.hpp"
#include "store/keep/unfinished.hpp"
#include "store/ranks/rank_messages.hpp"
#include "store/ranks/shares.hpp"
#include "store/write/save.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::store {

/// The state of this rank, as it tells it.
struct OwnDescription {
    SaveState told;
    std::vector<std::uint64_t> samples;  ///< content_samples()
};
/// Throws kChanged for memory that is gone.
[[nodiscard]] OwnDescription describe(const State& state, const SaveOptions& options,
                                      const std::string& path);
[[noreturn]] void refuse_ranks(const std::string& why);

/// The text of a file that a rank wrote. Throws kDamaged where its hash is another one.
[[nodiscard]] std::string read_note(const SaveContext& context, const std::string& folder,
                                    const std::string& file, std::uint64_t hash,
                                    const std::string& name);

/// The state of all ranks.
struct JoinedState {
    std::string structure;
    std::optional<Writers> writers;  ///< nothing: all have the same
    std::uint64_t hash = 0;          ///< of the file with the writers; 0: no such file
    std::string note;                ///< of what is not the same, and the first was taken
    std::vector<std::string> notes;  ///< files in the folder, to be removed
};

/// For rank 0. `messages`: a SaveState of each rank. Throws kInvalidArgument where the steps are
/// not equal, or what two ranks have.
[[nodiscard]] JoinedState join_states(const SaveContext& context, const ranks::Group& group,
                                      const State& state, const OwnDescription& mine,
                                      std::span<const std::string> messages, Replicas replicas,
                                      const UnfinishedFolder& folder);

/// For the others.
void tell_state(ranks::Conversation& talk, const ranks::Group& group, const SaveContext& context,
                const State& state, OwnDescription own, const SaveOffer& offer,
                const UnfinishedFolder& folder);
[[nodiscard]] std::optional<Writers> hear_writers(ranks::Conversation& talk,
                                                  const ranks::Group& group,
                                                  const SaveContext& context,
                                                  const UnfinishedFolder& folder);

}  // namespace penstock::store
