// SPDX-License-Identifier: Apache-2.0
#include "base/path.hpp"
#include "base/raise.hpp"
#include "state/writing/state_image.hpp"
#include "store/manifest/metadata.hpp"
#include "store/ranks/rank_messages.hpp"
#include "store/ranks/rank_save.hpp"
#include "store/store_impl.hpp"
#include "store/write/state_check.hpp"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock {

using store::Inspected;
using store::join;
using store::Newest;
using store::refuse;
using store::Unreadable;

void CheckpointStore::Impl::begin_writing() {
    gate.check_open();
    if (place) {
        refuse("write to checkpoint store", place_path,
               "it is a store of one checkpoint, which only saves");
    }
    if (group && group->ranks().number() != 0) {
        refuse("write to checkpoint store", folders.front(),
               fmt::format("{} cannot; rank 0 removes for all ranks",
                           group->name_of(group->ranks().number())));
    }
    if (lock.held()) {
        return;
    }
    lock = store::StoreLock();
    if (had_lock) {
        retention.forget_all();
    } else {  // later, a folder that vanished is an error: its disk may be gone for a while
        make_folders();
    }
    lock = store::lock_store(*engine, files, folders.front(), options.lock_wait_ms);
    had_lock = true;
    last = {};
    ownership.forget();
}

void CheckpointStore::Impl::make_folders() const {
    for (const std::string& folder : folders) {
        store::make_folders(files, folder);
    }
}

void CheckpointStore::Impl::find_last(std::string& note) {
    if (!options.incremental || !options.checksums) {
        last = {};
        return;
    }
    if (!last.path.empty() && store::has_hash(*engine, files, last.path, last.hash)) {
        return;
    }
    last = {};
    Newest looked = newest(Unreadable::kPassOver);
    if (looked.refused) {
        reported.append(note, {fmt::format("nothing is linked to it: {}", looked.refused->what())});
    }
    if (auto& found = looked.found;
        found && !read_back->is_damaged(base::last_name(found->info.path))) {
        last = {std::move(found->manifest), found->info.path, found->manifest_hash};
    }
}

std::uint64_t CheckpointStore::Impl::next_generation() const {
    const auto scan = store::scan_folder(files, folders.front());
    if (scan.generation_max == store::kGenerationMax) {
        refuse("save checkpoint", folders.front(),
               fmt::format("there is no generation after that of {}; move it to another "
                           "folder",
                           scan.newest));
    }
    // Counts those that are collected now, too: a number is not given twice.
    return scan.generation_max + 1;
}

store::Remover CheckpointStore::Impl::remover() {
    ownership.begin(store::scan_folder(files, folders.front()).generation_max);
    return {*engine, files, folders, ownership};
}

store::Outdated CheckpointStore::Impl::retain(const Progress& progress) {
    store::Outdated outdated = retention.outdated(
        [&](const std::string& path) { return store::read_all(engine, files, path, progress); });
    forget(outdated.names);
    store::Remover remover(*engine, files, folders, ownership, &stuck);
    remover.remove(outdated.names);
    outdated.left.insert(outdated.left.end(), remover.left().begin(), remover.left().end());
    return outdated;
}

void CheckpointStore::Impl::check_read_back(CheckpointInfo& info,
                                            std::span<const store::DamagedCheckpoint> damaged) {
    for (const store::DamagedCheckpoint& one : damaged) {
        if (one.path == info.path) {
            last = {};  // nothing is linked to it
            store::raise_damaged(one);
        }
        store::append_note(info.note, store::text_of(one));
    }
}

void CheckpointStore::Impl::forget(std::span<const std::string> names) {
    for (const std::string& name : names) {
        retention.forget(name);
        if (last.path == join(folders.front(), name)) {
            last = {};
        }
    }
}

void CheckpointStore::Impl::finish_saves(const std::string& next) {
    gate.check();
    if (const auto own = saver_made(false)) {
        if (!group) {  // other ranks save, whatever they have heard of the earlier one
            own->raise_failure(next);
        }
        own->queue()->finish();
    }
}

std::shared_ptr<store::BackgroundSaver> CheckpointStore::Impl::saver_made(bool make) {
    const std::lock_guard guard(saver_mutex);
    if (!saver && make) {
        saver = std::make_shared<store::BackgroundSaver>(options.host_memory_bytes);
    }
    return saver;
}

// A call by a progress function, and one in the child of a fork, are no save of this rank.
template <typename Save>
auto CheckpointStore::Impl::in_turn(const Save& save) {
    gate.check_not_inside();
    std::shared_ptr<ranks::Turn> turn;
    if (group && !gate.is_of_parent()) {
        const std::lock_guard guard(turns);
        turn = std::make_shared<ranks::Turn>(*group, store::kRankSave);
    }
    try {
        return save(turn);
    } catch (...) {
        if (turn) {
            turn->refuse(store::error_of(std::current_exception()));
        }
        throw;
    }
}

CheckpointInfo CheckpointStore::Impl::save_next(const State& state,
                                                const SaveOptions& save_options) {
    return in_turn([&](const std::shared_ptr<ranks::Turn>& turn) {
        finish_saves(fmt::format("step {}", save_options.step));
        return save(state, save_options, turn.get());
    });
}

// Of several ranks, a failure of an earlier save is thrown once this one has begun: the others may
// have heard of it at another time, and save. A rank that did not would be the next failure, of
// which they hear at another time again, and so on.
PendingSave CheckpointStore::Impl::save_async(State state, SaveOptions own,
                                              const AsyncOptions& async) {
    const std::string name = fmt::format("step {}", own.step);
    PendingSave pending = in_turn([&](const std::shared_ptr<ranks::Turn>& turn) {
        return save_in_turn(std::move(state), std::move(own), async, turn);
    });
    if (group) {
        saver_made(true)->raise_failure(name, true);
    }
    return pending;
}

PendingSave CheckpointStore::Impl::save_in_turn(State state, SaveOptions own,
                                                const AsyncOptions& async,
                                                const std::shared_ptr<ranks::Turn>& turn) {
    gate.check();
    static_cast<void>(store::check_state(state));  // reports now what could not be loaded again
    static_cast<void>(store::metadata_of(own, state));
    store::AsyncSave save_now{.name = fmt::format("step {}", own.step),
                              .memory = store::memory_of(state),
                              .streams = std::exchange(own.streams, {}),
                              .changing = own.changing,
                              .look = std::exchange(own.look, {}),
                              .begins_always = turn != nullptr};
    save_now.work = [&](store::StagedMemory staged) {
        own.look = std::move(staged.look);
        store::place(state, staged);
        return [this, state = std::move(state), own = std::move(own), turn](
                   store::PendingSave& running, CheckpointInfo& info) {
            SaveOptions now = own;
            now.progress = running.progress(own.progress);
            info = save(state, now, turn.get());
        };
    };
    return store::save_async(*saver_made(true), std::move(save_now), async);
}

CheckpointInfo CheckpointStore::Impl::save(const State& state, const SaveOptions& save_options,
                                           ranks::Turn* turn) {
    const store::WriterGate::Hold hold(gate);
    if (turn == nullptr) {
        CheckpointInfo info = commit(state, save_options, nullptr);
        after_commit(info, save_options);
        return info;
    }
    return save_with_ranks(state, save_options, *turn);
}

CheckpointInfo CheckpointStore::Impl::save_with_ranks(const State& state, SaveOptions own,
                                                      ranks::Turn& turn) {
    // A wait has no progress of its own: it asks whether to go on with the last numbers again.
    std::pair<std::uint64_t, std::uint64_t> last_numbers;
    ranks::Waiting waiting{.limit = std::chrono::milliseconds(options.rank_wait_ms),
                           .report = own.waiting};
    if (own.progress) {
        waiting.look = [&last_numbers, progress = own.progress] {
            if (!progress(last_numbers.first, last_numbers.second)) {
                throw Error(ErrorCode::kCancelled, 0, store::kRankSave, {}, kNoOffset,
                            "it was cancelled while it waited for other ranks");
            }
        };
        own.progress = [&last_numbers, progress = std::move(own.progress)](std::uint64_t done,
                                                                           std::uint64_t total) {
            last_numbers = {done, total};
            return progress(done, total);
        };
    }
    ranks::Conversation talk(turn, std::move(waiting));
    if (talk.leads()) {
        return lead(talk, [&] {
            CheckpointInfo info = commit(state, own, &talk);
            SaveOptions shown = own;  // a checkpoint that is read back moves this rank
            shown.progress = [&, calls = std::uint64_t{0}](std::uint64_t done,
                                                           std::uint64_t total) mutable {
                talk.moved(++calls);
                return !own.progress || own.progress(done, total);
            };
            after_commit(info, shown);  // before the verdict: what was read back may be damaged
            return info;
        });
    }
    const std::string offered;  // the identity of the store comes with rank 0's offer
    return store::follow_save(talk, *group, context(offered), state, own, last, [&] {
        gate.check_open();
        penstock::state::wait_for_streams(state.tensors, own.streams);
    });
}

CheckpointInfo CheckpointStore::Impl::lead(ranks::Conversation& talk,
                                           const std::function<CheckpointInfo()>& work) {
    CheckpointInfo info;
    try {
        info = work();
    } catch (...) {
        talk.fail(store::error_of(std::current_exception()));
        static_cast<void>(talk.end());
        throw;
    }
    store::note_failure(info.note, "the other ranks were not told",
                        [&] { talk.agree(store::verdict_of(info)); });
    for (const std::uint32_t rank : talk.end()) {
        store::append_note(
            info.note, fmt::format("{} was not heard from after the commit", group->name_of(rank)));
    }
    return info;
}

void CheckpointStore::Impl::refuse_save(const Error& error) {
    gate.check_not_inside();
    if (group && !gate.is_of_parent()) {
        const std::lock_guard guard(turns);
        ranks::Turn(*group, store::kRankSave).refuse(error);
    }
}

store::SaveContext CheckpointStore::Impl::context(const std::string& identity) {
    return {*engine, files,    folders,   options, [this] { return random(); },
            speeds,  identity, place_path};
}

CheckpointInfo CheckpointStore::Impl::commit(const State& state, const SaveOptions& save_options,
                                             ranks::Conversation* talk) {
    if (place) {
        return commit_at_path(state, save_options, talk);
    }
    begin_writing();
    penstock::state::wait_for_streams(state.tensors, save_options.streams);
    const std::uint64_t generation = next_generation();
    std::string note;
    ownership.begin(generation);
    reported.append(note, ownership.notes());
    stuck.next_save();
    store::Remover remover(*engine, files, folders, ownership, &stuck);
    store::note_failure(note, "what an earlier save left could not be removed",
                        [&] { remover.collect(); });
    reported.append(note, remover.left());
    find_last(note);
    return write(state, save_options, talk, generation, ownership.identity(), note);
}

CheckpointInfo CheckpointStore::Impl::commit_at_path(const State& state,
                                                     const SaveOptions& save_options,
                                                     ranks::Conversation* talk) {
    gate.check_open();
    struct Leave {
        Impl& impl;
        ~Leave() {
            impl.place->leave();
            impl.lock = store::StoreLock();
        }
    };
    lock = place->lock(options.lock_wait_ms);
    const Leave leave{*this};
    penstock::state::wait_for_streams(state.tensors, save_options.streams);
    const std::uint64_t generation = place->begin();
    last = {};
    CheckpointInfo info = write(state, save_options, talk, generation, store::make_identity(), {});
    store::note_failure(info.note, "the older checkpoint could not be removed",
                        [&] { place->settle(); });
    store::note_failure(info.note, "notes of the save", [&] {
        for (const std::string& left : place->left()) {
            store::append_note(info.note, left);
        }
    });
    return info;
}

CheckpointInfo CheckpointStore::Impl::write(const State& state, const SaveOptions& save_options,
                                            ranks::Conversation* talk, std::uint64_t generation,
                                            const std::string& identity, const std::string& note) {
    const store::SaveContext here = context(identity);
    const auto unfinished = [&] {
        return std::make_unique<store::UnfinishedCheckpoint>(
            *engine, files, folders, ownership, here.random, generation,
            store::checkpoint_name(generation, save_options.step), place ? &*place : nullptr);
    };
    std::unique_ptr<store::UnfinishedCheckpoint> folder;
    store::WrittenShards written;
    if (talk != nullptr) {
        folder = unfinished();
        written =
            store::lead_save(*talk, *group, here, state, save_options, last, generation, *folder);
    } else {
        stream::ProgressClock progress(save_options.progress, "save checkpoint");
        store::StateSums sums;
        store::SavePlan plan =
            store::plan_save(here, state, save_options, last, generation, sums, progress);
        static_cast<void>(store::place_shards(here, plan));
        folder = unfinished();
        written = store::write_shards(here, std::move(plan), *folder, sums, progress);
    }
    CheckpointInfo info = store::info_of(written.manifest, folder->named_path());
    info.pinned = save_options.pinned;
    info.note = written.note;
    store::append_note(info.note, note);
    store::LastCheckpoint saved{std::move(written.manifest), info.path, written.manifest_hash};
    store::commit(*folder, talk != nullptr);
    last = std::move(saved);
    return info;
}

void CheckpointStore::Impl::after_commit(CheckpointInfo& info, const SaveOptions& save_options) {
    if (place) {
        return;
    }
    store::Outdated outdated;
    store::note_failure(info.note, "older checkpoints could not be removed", [&] {
        retention.saved(std::string(base::last_name(info.path)), last.manifest, last.hash);
        outdated = retain(store::still_wanted(save_options.progress, info.written_bytes));
        reported.append(info.note, outdated.left);
    });
    check_read_back(info, outdated.damaged);
}

}  // namespace penstock
