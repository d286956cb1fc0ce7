// SPDX-License-Identifier: Apache-2.0
// A store of checkpoints: what it knows, and what its calls are made of. store.cpp has the public
// calls, store_reads.cpp the search for whole checkpoints, store_loads.cpp the loads by all ranks,
// store_saves.cpp what happens under the store's lock.
#pragma once

#include "ranks/conversation.hpp"
#include "store/background/background_saver.hpp"
#include "store/background/writer_gate.hpp"
#include "store/identity/ownership.hpp"
#include "store/keep/place.hpp"
#include "store/keep/removal.hpp"
#include "store/keep/retention.hpp"
#include "store/keep/store_folder.hpp"
#include "store/keep/store_lock.hpp"
#include "store/ranks/rank_load.hpp"
#include "store/stuck/stuck_removals.hpp"
#include "store/write/save.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

namespace store {

/// Throws kInvalidArgument.
[[noreturn]] void refuse(const std::string& operation, const std::string& path,
                         std::string_view why);

}  // namespace store

// Hidden: what is inside of an exported class would be exported, too.
struct __attribute__((visibility("hidden"))) CheckpointStore::Impl {
    using UseCheckpoint = std::function<void(Checkpoint)>;

    std::shared_ptr<Engine> engine;
    FileSystem files;
    std::vector<std::string> folders;  // at a path: the work folder
    store::WriterGate gate;
    StoreOptions options;

    store::StoreLock lock;
    bool had_lock = false;
    std::mt19937_64 random;
    std::vector<double> speeds;
    store::LastCheckpoint last;
    store::ReportedOnce reported;
    store::StuckRemovals stuck;
    store::Ownership ownership;  // after what it refers to, as retention
    const std::shared_ptr<store::ReadBack> read_back = std::make_shared<store::ReadBack>();
    store::Retention retention;
    std::optional<store::CheckpointPlace> place;
    std::string place_path;             // empty: numbered checkpoints
    std::optional<ranks::Group> group;  // of several ranks
    std::mutex turns;  // of this rank among the calls of all: a load takes several in a row
    std::mutex saver_mutex;
    std::shared_ptr<store::BackgroundSaver> saver;

    Impl(std::shared_ptr<Engine> with_engine, FileSystem with_files,
         std::vector<std::string> with_folders, const StoreOptions& with_options);

    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;
    ~Impl();

    // Refuses entries that are not the store's: a link, a file, a folder without a manifest.
    void check_own(const std::string& operation, const store::CheckpointEntry& entry,
                   std::string_view cure) const;

    // Makes the folders, once, and takes the lock; again if the folder was replaced.
    void begin_writing();

    void make_folders() const;

    // The newest checkpoint that is whole, and that `use` accepts; of `step`, if given. A reader
    // holds no lock: when something vanishes while it looks, something newer has come, and it looks
    // again.
    [[nodiscard]] store::Newest newest(store::Unreadable unreadable,
                                       std::optional<std::uint64_t> step = {},
                                       const UseCheckpoint& use = {}) const;

    [[nodiscard]] Checkpoint opened(const std::string& path) const;

    // Runs inspect(), and adds the problems that `use` finds. Throws what is no problem of this
    // checkpoint; with kThrow, all errors that are not about the file: then an older one is no
    // answer.
    [[nodiscard]] std::optional<store::Inspected> look_at(const store::CheckpointEntry& entry,
                                                          store::Unreadable unreadable,
                                                          const UseCheckpoint& use = {}) const;

    // Calls newest(), with the report for the caller.
    [[nodiscard]] std::optional<CheckpointInfo> newest_for(
        std::optional<std::uint64_t> step, const UseCheckpoint& use,
        std::vector<CheckpointInfo>* skipped) const;

    // Calls newest_for(), or opens the one that is asked for.
    [[nodiscard]] std::optional<CheckpointInfo> find(const LoadOptions& wanted,
                                                     const UseCheckpoint& use,
                                                     std::vector<CheckpointInfo>* skipped) const;

    std::optional<CheckpointInfo> load(const std::function<void(Loading)>& use,
                                       const LoadOptions& wanted,
                                       std::vector<CheckpointInfo>* skipped);

    // Leads it on rank 0.
    std::optional<CheckpointInfo> lead_load(store::LoadLeader& leader, const LoadOptions& wanted,
                                            std::vector<CheckpointInfo>* skipped) const;

    [[nodiscard]] store::CheckpointEntry entry_of(const std::string& operation,
                                                  std::uint64_t generation) const;

    // Finds the checkpoint whose shards may be linked: the newest whole one. Another one may be in
    // the folder of the last save by now.
    void find_last(std::string& note);

    [[nodiscard]] std::uint64_t next_generation() const;

    // For a removal that is no part of a save.
    [[nodiscard]] store::Remover remover();

    [[nodiscard]] store::Outdated retain(const Progress& progress);

    // A save whose checkpoint is there, and is not what was saved, has failed.
    void check_read_back(CheckpointInfo& info, std::span<const store::DamagedCheckpoint> damaged);

    void forget(std::span<const std::string> names);

    // Finishes the saves in flight: they are earlier, and come first.
    void finish_saves(const std::string& next);

    // Made by the first save_async(): its budget is looked up then.
    [[nodiscard]] std::shared_ptr<store::BackgroundSaver> saver_made(bool make);

    // Calls `save` with the turn of this call among those of all ranks, or nullptr. The others
    // learn what it throws before it begins.
    template <typename Save>
    auto in_turn(const Save& save);

    CheckpointInfo save_next(const State& state, const SaveOptions& save_options);

    PendingSave save_async(State state, SaveOptions own, const AsyncOptions& async);

    PendingSave save_in_turn(State state, SaveOptions own, const AsyncOptions& async,
                             const std::shared_ptr<ranks::Turn>& turn);

    CheckpointInfo save(const State& state, const SaveOptions& save_options, ranks::Turn* turn);

    CheckpointInfo save_with_ranks(const State& state, SaveOptions own, ranks::Turn& turn);

    // Tells all ranks what became of it. Whatever this one throws is thrown on all.
    CheckpointInfo lead(ranks::Conversation& talk, const std::function<CheckpointInfo()>& work);

    // Takes this rank's turn, and ends that save on all ranks.
    void refuse_save(const Error& error);

    [[nodiscard]] store::SaveContext context(const std::string& identity);

    // A save up to its name. `talk`: with the other ranks, or nullptr.
    CheckpointInfo commit(const State& state, const SaveOptions& save_options,
                          ranks::Conversation* talk);

    // The same at a path.
    CheckpointInfo commit_at_path(const State& state, const SaveOptions& save_options,
                                  ranks::Conversation* talk);

    // A save from its folder to its name.
    CheckpointInfo write(const State& state, const SaveOptions& save_options,
                         ranks::Conversation* talk, std::uint64_t generation,
                         const std::string& identity, const std::string& note);

    void after_commit(CheckpointInfo& info, const SaveOptions& save_options);
};

}  // namespace penstock
