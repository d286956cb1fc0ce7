// SPDX-License-Identifier: Apache-2.0
#include "store/ranks/rank_save.hpp"

#include "base/assert.hpp"
#include "base/path.hpp"
#include "format/shard_index.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/metadata.hpp"
#include "store/ranks/rank_messages.hpp"
#include "store/ranks/shares.hpp"
#include "store/ranks/state_exchange.hpp"
#include "store/write/metadata_writer.hpp"
#include "store/write/shard_writer.hpp"
#include "store/write/state_check.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::store {

namespace {

using ranks::Conversation;
using ranks::Silence;

// Ranks have numbers of shards of their own, so that no two of them give a file the same name.
constexpr std::uint64_t kShardsOfARank = 1'000'000;
// A client of NFS may not see a new folder for some seconds.
constexpr int kLooks = 30;
constexpr auto kLookEvery = std::chrono::milliseconds(100);

std::uint64_t hash_of(std::string_view text) {
    return stream::content_hash(std::as_bytes(std::span(text)));
}

// The tensors that a rank writes, as a state without the structure around them.
class OwnState {
public:
    OwnState(const State& state, std::uint32_t rank, const Writers& writers)
        : numbers_(tensors_of_rank(state, rank, writers)) {
        state_.tensors.reserve(numbers_.size());
        for (const std::size_t i : numbers_) {
            StateTensor& tensor = state_.tensors.emplace_back(state.tensors[i]);
            if (tensor.data.bytes == 0 && !tensor.global_shape.empty()) {
                tensor.shape = tensor.global_shape;  // it has no elements, and no other slice
                tensor.global_offset.assign(tensor.shape.size(), 0);
            }
        }
    }
    [[nodiscard]] const State& state() const { return state_; }
    [[nodiscard]] std::span<const std::size_t> numbers() const { return numbers_; }
    // A look of the caller's knows the numbers of the whole state.
    [[nodiscard]] MemoryLook look(const MemoryLook& look) const {
        if (!look) {
            return {};
        }
        return [this, look](std::span<const std::size_t> tensors) {
            std::vector<std::size_t> theirs;
            theirs.reserve(tensors.size());
            for (const std::size_t i : tensors) {
                theirs.push_back(numbers_[i]);
            }
            const auto gone = look(theirs);
            return gone
                       ? std::optional(static_cast<std::size_t>(
                             std::find(numbers_.begin(), numbers_.end(), *gone) - numbers_.begin()))
                       : std::nullopt;
        };
    }

private:
    std::vector<std::size_t> numbers_;
    State state_;
};

// The caller's progress, which also shows the others that this rank moves, and ends its work when
// another one has failed.
Progress shown_progress(Conversation& talk, const Progress& own) {
    return [&talk, own](std::uint64_t done, std::uint64_t total) {
        talk.moved(done);
        talk.stop_if_failed();
        return !own || own(done, total);
    };
}

// One rank's part of the work: the same on all of them.
class Share {
public:
    Share(Conversation& talk, const ranks::Group& group, const SaveContext& context,
          const State& state, const SaveOptions& options)
        : group_(group),
          context_(context),
          state_(state),
          options_(options),
          name_(share_name(group.ranks().number())),
          shards_after_(group.ranks().number() * kShardsOfARank),
          progress_(shown_progress(talk, options.progress), kRankSave) {
        static_cast<void>(check_state(state));
        options_.metadata = {};
        options_.pinned = false;
    }

    /// `writers`: nothing where all ranks have the same.
    [[nodiscard]] SaveReady plan(const LastCheckpoint& last, std::uint64_t generation,
                                 std::int64_t saved_unix_ns,
                                 const std::optional<Writers>& writers) {
        own_.emplace(state_, group_.ranks().number(),
                     writers ? *writers : writers_of(state_, group_.ranks().count()));
        options_.look = own_->look(options_.look);
        plan_.emplace(plan_save(context_, own_->state(), options_, last, generation, sums_,
                                progress_, {.name = name_, .shards_after = shards_after_}));
        plan_->saved_unix_ns = saved_unix_ns;
        plan_->metadata = unwritten_tensors(state_, own_->numbers());
        return {.bytes = place_shards(context_, *plan_)};
    }
    [[nodiscard]] WrittenShards write(UnfinishedFolder& folder) {
        PENSTOCK_ASSERT(plan_);
        WrittenShards written = write_shards(context_, std::move(*plan_), folder, sums_, progress_);
        for (std::size_t i = 0; i < folder.names().written.size(); ++i) {
            const std::string& path = folder.names().written[i];
            if (!path.empty()) {
                context_.files.sync_folder(path);
            }
        }
        return written;
    }

private:
    const ranks::Group& group_;
    const SaveContext& context_;
    const State& state_;
    std::optional<OwnState> own_;
    SaveOptions options_;
    const std::string name_;
    const std::uint64_t shards_after_;
    stream::ProgressClock progress_;
    StateSums sums_;
    std::optional<SavePlan> plan_;
};

// ---- rank 0

SaveOffer offer_of(const SaveContext& context, const UnfinishedCheckpoint& folder,
                   const SaveOptions& options, const LastCheckpoint& last, const SaveState& told,
                   std::uint64_t generation) {
    SaveOffer offer{.generation = generation,
                    .step = options.step,
                    .saved_unix_ns = now_unix_ns(),
                    .store = context.store,
                    .name = std::string(base::last_name(folder.named_path())),
                    .unfinished = std::string(base::last_name(folder.path())),
                    .written = {},
                    .named = {},
                    .last = last.path.empty() ? "" : std::string(base::last_name(last.path)),
                    .last_hash = last.hash,
                    .shard_bytes = context.options.shard_bytes,
                    .checksums = context.options.checksums,
                    .incremental = context.options.incremental,
                    .structure = told.structure,
                    .tensors = told.tensors,
                    .contents = told.contents};
    for (std::size_t i = 1; i < folder.names().written.size(); ++i) {
        offer.written.emplace_back(base::last_name(folder.names().written[i]));
        offer.named.push_back(folder.names().named[i]);
    }
    return offer;
}

// Each rank looked at the room for its own share; all of them need the sum.
void check_room(const SaveContext& context, std::span<const std::uint64_t> needed) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> by_device;
    for (std::size_t i = 0; i < needed.size(); ++i) {
        const std::string& path = context.folders[i];
        const DeviceId device = context.files.status(path).device;
        std::uint64_t& sum = by_device[{device.major, device.minor}];
        sum += needed[i];
        const std::uint64_t free = context.files.space(path).free_bytes;
        if (sum > free) {
            throw Error(ErrorCode::kSystem, ENOSPC, kRankSave, path, kNoOffset,
                        fmt::format("the ranks need {} bytes on the device of '{}', and {} are "
                                    "free; make room there, or keep fewer checkpoints",
                                    sum, path, free));
        }
    }
}

void check_ready(const SaveContext& context, const ranks::Group& group, const SaveReady& mine,
                 std::span<const std::string> messages) {
    std::vector<std::uint64_t> needed = mine.bytes;
    for (std::uint32_t rank = 1; rank < messages.size(); ++rank) {
        const SaveReady ready = SaveReady::from(messages[rank]);
        if (ready.bytes.size() != needed.size()) {
            refuse_ranks(fmt::format("the store of {} has {} folders, and that of rank 0 has {}",
                                     group.name_of(rank), ready.bytes.size(), needed.size()));
        }
        for (std::size_t i = 0; i < needed.size(); ++i) {
            needed[i] += std::min(ready.bytes[i], UINT64_MAX - needed[i]);
        }
    }
    check_room(context, needed);
}

// From the disk, whatever the message says: what is not there now would not be there later.
Manifest read_share(const SaveContext& context, const UnfinishedFolder& folder,
                    const std::string& message, std::uint32_t rank, const std::string& name,
                    std::string& note) {
    const SaveWritten written = SaveWritten::from(message);
    const std::string file = share_name(rank);
    const std::string text = read_note(context, folder.path(), file, written.share, name);
    append_note(note, written.note.empty() ? "" : fmt::format("{}: {}", name, written.note));
    return parse_manifest(text, join(folder.path(), file));
}

// As they lie now: in the folders that are written to.
void look_at_shards(const SaveContext& context, const UnfinishedFolder& folder,
                    const Manifest& joined, const ranks::Group& group) {
    const UnfinishedNames& names = folder.names();
    for (const Shard& shard : joined.shards) {
        const auto& named = names.named;
        const std::string& parts = joined.folders.at(shard.folder);
        const auto at =
            shard.folder == 0 ? named.begin() : std::find(named.begin(), named.end(), parts);
        const std::string path =
            at == named.end()
                ? join(parts, shard.file)
                : join(names.written[static_cast<std::size_t>(at - named.begin())], shard.file);
        const FileStatus status = context.files.status(path);
        if (status.kind != FileKind::kFile || status.bytes != shard.bytes) {
            throw Error(ErrorCode::kDamaged, 0, kRankSave, path, kNoOffset,
                        fmt::format("'{}' has {} bytes, and {} were written by a rank; do all {} "
                                    "ranks see the same folder?",
                                    path, status.bytes, shard.bytes, group.ranks().count()));
        }
    }
}

std::vector<bool> folders_in_use(const UnfinishedFolder& folder, const Manifest& joined) {
    std::vector<bool> used;
    for (const std::string& path : folder.names().named) {
        used.push_back(std::find(joined.folders.begin(), joined.folders.end(), path) !=
                       joined.folders.end());
    }
    return used;
}

// Index, manifest and pin, durable; the shares, which the manifest has now, go, and the notes.
std::uint64_t write_root(const SaveContext& context, const Manifest& joined, bool pinned,
                         std::span<const std::string> notes, UnfinishedCheckpoint& folder) {
    const MetadataTexts texts = render_texts(joined);
    ShardWriter writer(context.engine, context.files, context.folders.size());
    writer.write_text(join(folder.path(), format::kShardIndexName), texts.index);
    if (pinned) {
        writer.write_text(join(folder.path(), kPinnedName), "");
    }
    writer.write_text(join(folder.path(), kManifestName), texts.manifest);
    writer.finish();
    for (std::uint32_t rank = 0; rank < joined.world; ++rank) {
        context.files.remove(join(folder.path(), share_name(rank)));
    }
    for (const std::string& note : notes) {
        context.files.remove(join(folder.path(), note));
    }
    folder.drop_shard_folders(folders_in_use(folder, joined));
    return hash_of(texts.manifest);
}

// ---- the others

UnfinishedNames names_of(const SaveOffer& offer, const std::vector<std::string>& folders,
                         const std::string& name) {
    if (offer.written.size() + 1 != folders.size() || offer.named.size() != offer.written.size()) {
        refuse_ranks(fmt::format("the store of {} has {} folders, and that of rank 0 has {}", name,
                                 folders.size(), offer.written.size() + 1));
    }
    UnfinishedNames names;
    names.path = join(folders.front(), offer.unfinished);
    names.written.push_back(names.path);
    names.named.push_back(names.path);
    for (std::size_t i = 1; i < folders.size(); ++i) {
        names.written.push_back(join(folders[i], offer.written[i - 1]));
        names.named.push_back(offer.named[i - 1]);
    }
    return names;
}

// Their names are random, so who sees them sees the folders that rank 0 made.
void find_folders(Conversation& talk, const SaveContext& context, const UnfinishedNames& names,
                  const std::string& name) {
    for (const std::string& path : names.written) {
        for (int looks = 0; !is_there(context.files, path); ++looks) {
            if (looks == kLooks) {
                throw Error(ErrorCode::kInvalidArgument, 0, kRankSave, path, kNoOffset,
                            fmt::format("the folder '{}' of {} is not the one of rank 0, which "
                                        "made '{}' in it; give all ranks the same folder, on "
                                        "storage that all of them mount",
                                        base::folder_of(path), name, base::last_name(path)));
            }
            talk.pause(kLookEvery);
        }
    }
}

void find_last(const SaveContext& context, const SaveOffer& offer, LastCheckpoint& last) {
    const std::string path = offer.last.empty() ? "" : join(context.folders.front(), offer.last);
    if (last.path == path && last.hash == offer.last_hash) {
        return;
    }
    last = {};
    if (path.empty()) {
        return;
    }
    try {
        const std::string text = read_manifest_text(context.engine, context.files, path);
        if (hash_of(text) == offer.last_hash) {
            last = {parse_manifest(text, path), path, offer.last_hash};
        }
    } catch (const Error&) {  // nothing is linked, and all is written
        last = {};
    }
}

// Finds out what became of a save of which nothing is heard any more.
CheckpointInfo judge(const SaveContext& context, const std::optional<SaveOffer>& offer,
                     const Error& silence) {
    const auto failed = [&](std::string_view what) {
        return Error(silence.reason(), silence.system_errno(), silence.operation(), silence.path(),
                     kNoOffset, fmt::format("{}; {}", silence.what(), what));
    };
    if (!offer) {
        throw failed("this rank had not begun to save");
    }
    const std::string& store = context.folders.front();
    const std::string named = context.named_path(offer->name);
    try {
        if (context.place.empty() || is_there(context.files, store)) {
            // At a place, an older checkpoint may have that path by now.
            rename_away(context.files, store, join(store, offer->unfinished), offer->generation,
                        context.random());
        }
        if (is_there(context.files, named)) {
            context.files.sync_folder(base::folder_of(named));
            const Manifest manifest = read_manifest(context.engine, context.files, named);
            if (manifest.store == offer->store && manifest.generation == offer->generation &&
                manifest.saved_unix_ns == offer->saved_unix_ns) {
                CheckpointInfo info = info_of(manifest, named);
                info.note = fmt::format("{}; but it had committed the save", silence.what());
                return info;
            }
        }
    } catch (const Error& error) {
        throw failed(fmt::format("whether it was saved cannot be found out ({}); look for '{}'",
                                 error.what(), named));
    }
    throw failed("nothing was saved");
}

// Rank 0 looks for the failure of this rank until then.
void await_verdict(Conversation& talk) {
    try {
        static_cast<void>(talk.verdict());
    } catch (const Silence&) {
        talk.leave_silently();
    } catch (const Error&) {  // it is the failure of this rank
        return;
    }
}

}  // namespace

Error error_of(const std::exception_ptr& thrown, const char* operation) {
    std::string what = "an unknown error";
    try {
        std::rethrow_exception(thrown);
    } catch (const Error& error) {
        return error;
    } catch (const std::bad_alloc&) {
        return {ErrorCode::kOutOfMemory, ENOMEM, operation, {}, kNoOffset, "memory ran out"};
    } catch (const std::exception& error) {
        what = error.what();
    } catch (...) {
        what += ", which is no std::exception";
    }
    return {ErrorCode::kSystem, 0, operation, {}, kNoOffset, what};
}

WrittenShards lead_save(Conversation& talk, const ranks::Group& group, const SaveContext& context,
                        const State& state, const SaveOptions& options, const LastCheckpoint& last,
                        std::uint64_t generation, UnfinishedCheckpoint& folder) {
    Share share(talk, group, context, state, options);
    const CheckpointMetadata metadata = metadata_of(options, state);
    folder.make_shard_folders();
    const OwnDescription own = describe(state, options, folder.named_path());
    const SaveOffer offer = offer_of(context, folder, options, last, own.told, generation);
    talk.announce(kOfferStage, offer.message());
    const JoinedState joined =
        join_states(context, group, state, own, talk.gather(kStateStage), options.replicas, folder);
    talk.announce(kAssignedStage, SaveAssigned{.writers = joined.hash}.message());
    const SaveReady ready = share.plan(last, generation, offer.saved_unix_ns, joined.writers);
    check_ready(context, group, ready, talk.gather(kReadyStage));
    talk.announce(kGoStage, {});
    WrittenShards out = share.write(folder);
    append_note(out.note, joined.note);
    const std::vector<std::string> written = talk.gather(kWrittenStage);
    std::vector<Manifest> shares(written.size());
    shares.front() = std::move(out.manifest);
    for (std::uint32_t rank = 1; rank < written.size(); ++rank) {
        shares[rank] =
            read_share(context, folder, written[rank], rank, group.name_of(rank), out.note);
    }
    out.manifest = join_shares(shares, [&](std::uint32_t rank) { return group.name_of(rank); });
    out.manifest.structure = joined.structure;
    out.manifest.metadata = metadata;
    look_at_shards(context, folder, out.manifest, group);
    out.manifest_hash = write_root(context, out.manifest, options.pinned, joined.notes, folder);
    return out;
}

CheckpointInfo follow_save(Conversation& talk, const ranks::Group& group,
                           const SaveContext& context, const State& state,
                           const SaveOptions& options, LastCheckpoint& last,
                           const std::function<void()>& begin) {
    const std::string name = group.name_of(group.ranks().number());
    std::optional<SaveOffer> offer;
    const auto returned = [&](const std::string& verdict) {
        if (!offer) {  // of an exchange that this rank never began
            refuse_ranks("the mailbox has the verdict of another run; each run needs an empty one");
        }
        CheckpointInfo info = info_from(verdict);
        info.path = context.named_path(offer->name);
        info.pinned = options.pinned;
        info.metadata = metadata_of(options, state);
        return info;
    };
    try {
        std::exception_ptr thrown;  // by a function of the caller's, which gets it back
        try {
            begin();
            offer = SaveOffer::from(talk.hear(kOfferStage));
            StoreOptions agreed = context.options;
            agreed.shard_bytes = offer->shard_bytes;
            agreed.checksums = offer->checksums;
            agreed.incremental = offer->incremental;
            const SaveContext here{context.engine, context.files,  context.folders, agreed,
                                   context.random, context.speeds, offer->store,    context.place};
            UnfinishedFolder folder(context.files, context.folders,
                                    names_of(*offer, context.folders, name));
            find_folders(talk, here, folder.names(), name);
            find_last(here, *offer, last);
            Share share(talk, group, here, state, options);
            tell_state(talk, group, here, state, describe(state, options, folder.path()), *offer,
                       folder);
            const auto writers = hear_writers(talk, group, here, folder);
            talk.tell(kReadyStage,
                      share.plan(last, offer->generation, offer->saved_unix_ns, writers).message());
            static_cast<void>(talk.hear(kGoStage));
            const WrittenShards written = share.write(folder);
            talk.tell(kWrittenStage,
                      SaveWritten{.share = written.manifest_hash, .note = written.note}.message());
        } catch (const Silence&) {
            throw;
        } catch (const Error& error) {
            talk.has_heard() ? void() : talk.tell_failure(error);  // or it is the verdict
        } catch (const std::bad_alloc&) {
            talk.tell_failure(error_of(std::current_exception()));
        } catch (...) {
            thrown = std::current_exception();
            talk.tell_failure(error_of(thrown));
        }
        if (thrown != nullptr) {
            await_verdict(talk);
            std::rethrow_exception(thrown);
        }
        return returned(talk.verdict());
    } catch (const Silence& silence) {
        talk.leave_silently();
        return judge(context, offer, silence);
    }
}

}  // namespace penstock::store
