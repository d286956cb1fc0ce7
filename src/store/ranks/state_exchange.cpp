// SPDX-License-Identifier: Apache-2.0
#include "store/ranks/state_exchange.hpp"

#include "base/assert.hpp"
#include "base/raise.hpp"
#include "state/structure/structure_text.hpp"
#include "store/keep/store_folder.hpp"
#include "store/ranks/rank_states.hpp"
#include "store/write/state_check.hpp"
#include "stream/checksum.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace penstock::store {

namespace {

std::uint64_t note_hash(std::string_view text) {
    return stream::content_hash(std::as_bytes(std::span(text)));
}

// A file that is read and removed in this save, so it need not be durable. Returns its hash.
std::uint64_t write_note(const SaveContext& context, const std::string& path,
                         std::string_view text) {
    const File file = context.files.open(path, {.access = Access::kWrite,
                                                .create = true,
                                                .exclusive = true,
                                                .cache = CachePolicy::kCached});
    stream::write_when_room(context.engine, file, std::as_bytes(std::span(text)), 0);
    return note_hash(text);
}

}  // namespace

void refuse_ranks(const std::string& why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, kRankSave, why));
}

OwnDescription describe(const State& state, const SaveOptions& options, const std::string& path) {
    OwnDescription own{.told = {.step = options.step,
                                .structure = state::structure_hash(state.structure),
                                .tensors = hash_of_whole_tensors(state),
                                .contents = 0,
                                .description = 0},
                       .samples = {}};
    look_at_all(state, options.look, path);
    own.samples = content_samples(state);
    own.told.contents = hash_of_contents(state, own.samples);
    return own;
}

std::string read_note(const SaveContext& context, const std::string& folder,
                      const std::string& file, std::uint64_t hash, const std::string& name) {
    std::string text = read_manifest_text(context.engine, context.files, folder, file);
    if (note_hash(text) != hash) {
        throw Error(ErrorCode::kDamaged, 0, kRankSave, join(folder, file), kNoOffset,
                    fmt::format("{} is not what {} wrote there", join(folder, file), name));
    }
    return text;
}

JoinedState join_states(const SaveContext& context, const ranks::Group& group, const State& state,
                        const OwnDescription& mine, std::span<const std::string> messages,
                        Replicas replicas, const UnfinishedFolder& folder) {
    PENSTOCK_ASSERT(messages.size() == group.ranks().count());
    JoinedStates states(group.ranks().count(), replicas);
    std::vector<std::uint32_t> same;
    std::vector<std::string> notes;
    for (std::uint32_t rank = 1; rank < messages.size(); ++rank) {
        const SaveState theirs = SaveState::from(messages[rank]);
        const std::string name = group.name_of(rank);
        if (theirs.step != mine.told.step) {
            refuse_ranks(
                fmt::format("{} saves step {}, and rank 0 step {}; each rank saves the same step",
                            name, theirs.step, mine.told.step));
        }
        if (theirs.description == 0) {
            same.push_back(rank);
            continue;
        }
        if (same.size() + 1 == rank) {  // the first that has not the same
            states.add(0, RankDescription::of(state, mine.samples), group.name_of(0));
        }
        notes.push_back(state_name(rank));
        states.add(rank,
                   RankDescription::from(read_note(context, folder.path(), state_name(rank),
                                                   theirs.description, name)),
                   name);
    }
    if (same.size() + 1 == messages.size()) {
        return {.structure = state.structure, .writers = {}, .hash = 0, .note = {}, .notes = {}};
    }
    JoinedState joined{.structure = states.structure(),
                       .writers = states.writers(same),
                       .hash = 0,
                       .note = states.note(),
                       .notes = std::move(notes)};
    joined.hash =
        write_note(context, join(folder.path(), writers_name()), writers_text(*joined.writers));
    joined.notes.push_back(writers_name());
    return joined;
}

// A description goes through the folder: it may be large.
void tell_state(ranks::Conversation& talk, const ranks::Group& group, const SaveContext& context,
                const State& state, OwnDescription own, const SaveOffer& offer,
                const UnfinishedFolder& folder) {
    SaveState& told = own.told;
    if (told.structure != offer.structure || told.tensors != offer.tensors ||
        told.contents != offer.contents) {
        told.description =
            write_note(context, join(folder.path(), state_name(group.ranks().number())),
                       RankDescription::of(state, own.samples).text());
    }
    talk.tell(kStateStage, told.message());
}

std::optional<Writers> hear_writers(ranks::Conversation& talk, const ranks::Group& group,
                                    const SaveContext& context, const UnfinishedFolder& folder) {
    const SaveAssigned assigned = SaveAssigned::from(talk.hear(kAssignedStage));
    if (assigned.writers == 0) {
        return std::nullopt;
    }
    return writers_from(
        read_note(context, folder.path(), writers_name(), assigned.writers, group.name_of(0)));
}

}  // namespace penstock::store
