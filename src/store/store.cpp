// SPDX-License-Identifier: Apache-2.0
#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/random.hpp"
#include "base/wait_slice.hpp"
#include "format/fault.hpp"
#include "format/utf8.hpp"
#include "state/writing/state_image.hpp"
#include "store/background/background_saver.hpp"
#include "store/background/writer_gate.hpp"
#include "store/identity/ownership.hpp"
#include "store/keep/removal.hpp"
#include "store/keep/retention.hpp"
#include "store/keep/store_folder.hpp"
#include "store/keep/store_lock.hpp"
#include "store/manifest/metadata.hpp"
#include "store/stuck/stuck_removals.hpp"
#include "store/write/save.hpp"
#include "store/write/state_check.hpp"
#include "stream/checksum.hpp"

#include <penstock/checkpoint.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <mutex>
#include <random>
#include <span>
#include <utility>

namespace penstock {

using store::CheckpointEntry;
using store::Inspected;
using store::join;
using store::Newest;
using store::Unreadable;

namespace {

constexpr int kScansMax = 100;

using UseCheckpoint = std::function<void(Checkpoint)>;

[[noreturn]] void refuse(const std::string& operation, const std::string& path,
                         std::string_view why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, operation, why, path));
}

constexpr const char* kOpenStore = "open checkpoint store";
constexpr std::string_view kNeeds = "it needs an engine, and one folder or more";

std::shared_ptr<Engine> given(std::shared_ptr<Engine> engine) {
    if (!engine) {
        refuse(kOpenStore, {}, kNeeds);
    }
    return engine;
}

}  // namespace

struct CheckpointStore::Impl {
    std::shared_ptr<Engine> engine;
    FileSystem files;
    std::vector<std::string> folders;
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
    std::mutex saver_mutex;
    std::shared_ptr<store::BackgroundSaver> saver;

    Impl(std::shared_ptr<Engine> with_engine, FileSystem with_files,
         std::vector<std::string> with_folders, const StoreOptions& with_options)
        : engine(given(std::move(with_engine))),
          files(std::move(with_files)),
          folders(std::move(with_folders)),
          gate(folders.empty() ? std::string() : folders.front()),
          options(with_options),
          random(base::random_bits()),
          ownership(*engine, files, folders),
          retention(*engine, files, folders, options, ownership, *read_back) {
        const std::string operation = kOpenStore;
        if (folders.empty()) {
            refuse(operation, {}, kNeeds);
        }
        for (std::string& folder : folders) {
            folder = files.resolve(folder);
            store::check_folder(files, folder);
        }
        for (const std::string& folder : folders) {
            if (std::count(folders.begin(), folders.end(), folder) != 1) {
                refuse(operation, folder, "the folder is named twice; each device needs one");
            }
        }
        for (std::size_t i = 1; i < folders.size(); ++i) {
            if (!format::is_utf8(folders[i])) {
                refuse(operation, folders[i],
                       "a manifest names the folders after the first one, and it is written in "
                       "UTF-8, which the path is not; give a path of UTF-8, or one folder alone");
            }
        }
        if (options.shard_bytes == 0) {
            refuse(operation, folders.front(), "shard_bytes is 0; it takes 1 or more");
        }
        if (options.keep_best != 0 && options.metric.name.empty()) {
            refuse(
                operation, folders.front(),
                "keep_best needs the name of a metric, and this one is empty; give the name that "
                "the metadata of the saves has");
        }
    }

    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;
    ~Impl() {
        if (saver && !gate.is_of_parent()) {  // others may share it; its saves need the rest
            saver->queue()->finish();
        }
    }

    // Refuses entries that are not the store's: a link, a file, a folder without a manifest.
    void check_own(const std::string& operation, const CheckpointEntry& entry,
                   std::string_view cure) const {
        const Folder folder = files.open_folder(folders.front());
        if (const std::string why = store::why_not_own(folder, entry.name); !why.empty()) {
            refuse(operation, join(folders.front(), entry.name),
                   fmt::format("{}, and no checkpoint of the store's own; {}", why, cure));
        }
    }

    // Makes the folders, once, and takes the lock; again if the folder was replaced.
    void begin_writing() {
        gate.check_open();
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

    void make_folders() const {
        for (const std::string& folder : folders) {
            store::make_folders(files, folder);
        }
    }

    // The newest checkpoint that is whole, and that `use` accepts; of `step`, if given. A reader
    // holds no lock: when something vanishes while it looks, something newer has come, and it looks
    // again.
    [[nodiscard]] Newest newest(Unreadable unreadable, std::optional<std::uint64_t> step = {},
                                const UseCheckpoint& use = {}) const {
        Newest out;
        for (int scan = 0; scan < kScansMax; ++scan) {
            const auto checkpoints = store::scan_folder(files, folders.front()).checkpoints;
            const auto end = std::find_if(
                checkpoints.rbegin(), checkpoints.rend(), [&](const CheckpointEntry& entry) {
                    if ((step && entry.step != *step) ||
                        out.has_passed_over(join(folders.front(), entry.name))) {
                        return false;
                    }
                    out.found = look_at(entry, unreadable, use);
                    if (!out.found || out.found->info.problem.empty()) {
                        return true;
                    }
                    out.pass_over(*std::exchange(out.found, std::nullopt));
                    return false;
                });
            if (out.found || end == checkpoints.rend()) {
                return out;
            }
        }
        base::raise(base::error(ErrorCode::kSystem, "find latest checkpoint",
                                "checkpoints go as fast as they are looked at; try again",
                                folders.front()));
    }

    [[nodiscard]] Checkpoint opened(const std::string& path) const {
        Checkpoint out(engine, files, path, options.cache);
        out.report_to(read_back);
        return out;
    }

    // Runs inspect(), and adds the problems that `use` finds. Throws what is no problem of this
    // checkpoint; with kThrow, all errors that are not about the file: then an older one is no
    // answer.
    [[nodiscard]] std::optional<Inspected> look_at(const CheckpointEntry& entry,
                                                   Unreadable unreadable,
                                                   const UseCheckpoint& use = {}) const {
        auto found = store::inspect(*engine, files, folders.front(), entry);
        if (found && found->info.problem.empty() && use) {
            try {
                use(opened(found->info.path));
            } catch (const Error& error) {
                found->error = error;
                found->info.problem = error.what();
                if (!store::is_there(files, found->info.path)) {
                    found.reset();
                }
            }
        }
        if (found && found->error && !found->is_passed_over(unreadable)) {
            throw Error(*found->error);
        }
        return found;
    }

    // Calls newest(), with the report for the caller.
    [[nodiscard]] std::optional<CheckpointInfo> newest_for(
        std::optional<std::uint64_t> step, const UseCheckpoint& use,
        std::vector<CheckpointInfo>* skipped) const {
        Newest looked = newest(Unreadable::kThrow, step, use);
        if (skipped != nullptr) {
            *skipped = std::move(looked.passed_over);
        }
        if (looked.found) {
            return std::move(looked.found->info);
        }
        if (looked.refused) {
            throw Error(*looked.refused);
        }
        return std::nullopt;
    }

    [[nodiscard]] CheckpointEntry entry_of(const std::string& operation,
                                           std::uint64_t generation) const {
        const auto checkpoints = store::scan_folder(files, folders.front()).checkpoints;
        auto same = store::of_generation(checkpoints, generation);
        if (same.size() > 1) {
            refuse(operation, folders.front(), store::why_not_one(same));
        }
        if (same.empty()) {
            refuse(operation, folders.front(),
                   fmt::format("there is no checkpoint of generation {}; there are {}", generation,
                               checkpoints.empty() ? "none"
                                                   : fmt::format("{}, the newest of generation {}",
                                                                 checkpoints.size(),
                                                                 checkpoints.back().generation)));
        }
        return std::move(same.front());
    }

    // Finds the checkpoint whose shards may be linked: the newest whole one. Another one may be in
    // the folder of the last save by now.
    void find_last(std::string& note) {
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
            reported.append(note,
                            {fmt::format("nothing is linked to it: {}", looked.refused->what())});
        }
        if (auto& found = looked.found;
            found && !read_back->is_damaged(base::last_name(found->info.path))) {
            last = {std::move(found->manifest), found->info.path, found->manifest_hash};
        }
    }

    [[nodiscard]] std::uint64_t next_generation() const {
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

    // For a removal that is no part of a save.
    [[nodiscard]] store::Remover remover() {
        ownership.begin(store::scan_folder(files, folders.front()).generation_max);
        return {*engine, files, folders, ownership};
    }

    [[nodiscard]] store::Outdated retain(const Progress& progress) {
        store::Outdated outdated = retention.outdated([&](const std::string& path) {
            return store::read_all(engine, files, path, progress);
        });
        forget(outdated.names);
        store::Remover remover(*engine, files, folders, ownership, &stuck);
        remover.remove(outdated.names);
        outdated.left.insert(outdated.left.end(), remover.left().begin(), remover.left().end());
        return outdated;
    }

    // A save whose checkpoint is there, and is not what was saved, has failed.
    void check_read_back(CheckpointInfo& info, std::span<const store::DamagedCheckpoint> damaged) {
        for (const store::DamagedCheckpoint& one : damaged) {
            if (one.path == info.path) {
                last = {};  // nothing is linked to it
                store::raise_damaged(one);
            }
            store::append_note(info.note, store::text_of(one));
        }
    }

    void forget(std::span<const std::string> names) {
        for (const std::string& name : names) {
            retention.forget(name);
            if (last.path == join(folders.front(), name)) {
                last = {};
            }
        }
    }

    // Finishes the saves in flight: they are earlier, and come first.
    void finish_saves(const std::string& next) {
        gate.check();
        if (const auto own = saver_made(false)) {
            own->raise_failure(next);
            own->queue()->finish();
        }
    }

    // Made by the first save_async(): its budget is looked up then.
    [[nodiscard]] std::shared_ptr<store::BackgroundSaver> saver_made(bool make) {
        const std::lock_guard guard(saver_mutex);
        if (!saver && make) {
            saver = std::make_shared<store::BackgroundSaver>(options.host_memory_bytes);
        }
        return saver;
    }

    PendingSave save_async(State state, SaveOptions own, const AsyncOptions& async) {
        gate.check();
        static_cast<void>(store::check_state(state));  // reports now what could not be loaded again
        static_cast<void>(store::metadata_of(own, state));
        store::AsyncSave save_now{.name = fmt::format("step {}", own.step),
                                  .memory = store::memory_of(state),
                                  .streams = std::exchange(own.streams, {}),
                                  .changing = own.changing,
                                  .look = std::exchange(own.look, {})};
        save_now.work = [&](store::StagedMemory staged) {
            own.look = std::move(staged.look);
            store::place(state, staged);
            return [this, state = std::move(state), own = std::move(own)](
                       store::PendingSave& running, CheckpointInfo& info) {
                SaveOptions now = own;
                now.progress = running.progress(own.progress);
                info = save(state, now);
            };
        };
        return store::save_async(*saver_made(true), std::move(save_now), async);
    }

    CheckpointInfo save(const State& state, const SaveOptions& save_options) {
        const store::WriterGate::Hold hold(gate);
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
        const store::SaveContext context{
            *engine, files, folders, options, [this] { return random(); }, speeds, ownership};
        stream::ProgressClock progress(save_options.progress, "save checkpoint");
        store::StateSums sums;
        store::SavePlan plan =
            store::plan_save(context, state, save_options, last, generation, sums, progress);
        store::WrittenShards written =
            store::write_shards(context, std::move(plan), sums, progress);
        CheckpointInfo info = store::info_of(written.manifest, written.folder->named_path());
        info.pinned = save_options.pinned;
        info.note = written.note;
        store::append_note(info.note, note);
        store::LastCheckpoint saved{std::move(written.manifest), info.path, written.manifest_hash};
        store::commit(written);
        last = std::move(saved);
        store::Outdated outdated;
        store::note_failure(info.note, "older checkpoints could not be removed", [&] {
            retention.saved(std::string(base::last_name(info.path)), last.manifest, last.hash);
            outdated = retain(store::still_wanted(save_options.progress, info.written_bytes));
            reported.append(info.note, outdated.left);
        });
        check_read_back(info, outdated.damaged);
        return info;
    }
};

namespace {

template <typename T>
T& there(const std::unique_ptr<T>& impl) {
    if (!impl) {
        refuse("checkpoint store", {}, "it was moved from; use the store that it was moved to");
    }
    return *impl;
}

}  // namespace

std::shared_ptr<store::BackgroundSaver> store::saver_of(const CheckpointStore& store) {
    return there(store.impl_).saver_made(true);
}

CheckpointStore::CheckpointStore(std::shared_ptr<Engine> engine, FileSystem files,
                                 std::vector<std::string> folders, const StoreOptions& options)
    : impl_(std::make_unique<Impl>(std::move(engine), std::move(files), std::move(folders),
                                   options)) {}

CheckpointStore::CheckpointStore(CheckpointStore&& other) noexcept = default;
CheckpointStore& CheckpointStore::operator=(CheckpointStore&& other) noexcept = default;
CheckpointStore::~CheckpointStore() = default;

CheckpointInfo CheckpointStore::save(const State& state, const SaveOptions& options) {
    there(impl_).finish_saves(fmt::format("step {}", options.step));
    return impl_->save(state, options);
}

PendingSave CheckpointStore::save_async(State state, const SaveOptions& options,
                                        const AsyncOptions& async) {
    return there(impl_).save_async(std::move(state), options, async);
}

bool CheckpointStore::wait(std::chrono::nanoseconds timeout) {
    there(impl_).gate.check_not_inside();
    const auto saver = impl_->saver_made(false);
    if (saver == nullptr) {
        return true;
    }
    const bool idle = saver->queue()->wait_idle(timeout);
    saver->raise_failure({});
    return idle;
}

void CheckpointStore::close() {
    store::WriterGate& gate = there(impl_).gate;
    if (gate.is_closed() || gate.is_of_parent()) {
        return;
    }
    gate.check();
    const auto saver = impl_->saver_made(false);
    if (saver != nullptr) {
        saver->queue()->finish();
    }
    const store::WriterGate::Hold hold(gate);
    gate.close();
    impl_->lock = store::StoreLock();
    if (saver != nullptr) {
        saver->raise_failure({});
    }
}

std::optional<CheckpointInfo> CheckpointStore::latest(std::vector<CheckpointInfo>* skipped) const {
    return there(impl_).newest_for({}, {}, skipped);
}

std::optional<CheckpointInfo> CheckpointStore::open_newest(
    const std::function<void(Checkpoint)>& use, std::optional<std::uint64_t> step,
    std::vector<CheckpointInfo>* skipped) const {
    return there(impl_).newest_for(step, use, skipped);
}

std::vector<CheckpointInfo> CheckpointStore::list() const {
    std::vector<CheckpointInfo> infos;
    const std::string& folder = there(impl_).folders.front();
    const auto own = store::known_identity(*impl_->engine, impl_->files, folder);
    for (const auto& entry : store::scan_folder(impl_->files, folder).checkpoints) {
        if (auto found = store::inspect(*impl_->engine, impl_->files, folder, entry)) {
            if (own && found->info.note.empty() && !store::is_own(*own, found->manifest.store)) {
                found->info.note =
                    "another store saved it; the store neither counts nor removes it";
            }
            infos.push_back(std::move(found->info));
        }
    }
    return infos;
}

std::vector<CheckpointInfo> CheckpointStore::best(const Metric& metric, std::size_t count,
                                                  std::vector<CheckpointInfo>* skipped) const {
    std::vector<CheckpointInfo> infos;
    Newest looked;  // for what is passed over
    for (const auto& entry :
         store::scan_folder(there(impl_).files, impl_->folders.front()).checkpoints) {
        auto found = impl_->look_at(entry, Unreadable::kPassOver);
        if (found && found->info.problem.empty()) {
            infos.push_back(std::move(found->info));
        } else if (found) {
            if (skipped != nullptr && found->is_refused()) {
                skipped->push_back(found->info);
            }
            looked.pass_over(std::move(*found));
        }
    }
    std::vector<CheckpointInfo> out = store::best_of(infos, metric, count);
    if (out.empty() && looked.refused) {
        throw Error(*looked.refused);
    }
    if (const std::string likely = out.empty() ? store::likely_name(infos, metric.name) : "";
        !likely.empty()) {
        refuse("best", impl_->folders.front(),
               fmt::format("no checkpoint has {} in its metadata; did you mean {}?",
                           format::shown(metric.name), format::shown(likely)));
    }
    return out;
}

Checkpoint CheckpointStore::open(std::uint64_t generation) const {
    const CheckpointEntry entry = there(impl_).entry_of("open checkpoint", generation);
    return impl_->opened(join(impl_->folders.front(), entry.name));
}

void CheckpointStore::pin(std::uint64_t generation, bool pinned) {
    // Takes no lock, so that a tool can pin while a training process holds it. A removal looks for
    // the pin again after the rename.
    const FileSystem& files = there(impl_).files;
    const CheckpointEntry entry = impl_->entry_of("pin checkpoint", generation);
    impl_->check_own("pin checkpoint", entry, "it is not removed by the store, and needs no pin");
    const std::string path = join(impl_->folders.front(), entry.name);
    const std::string mark = join(path, store::kPinnedName);
    if (pinned) {
        File file = files.open(mark, {.access = Access::kWrite,
                                      .create = true,
                                      .follow = false,
                                      .cache = CachePolicy::kCached});
        file.sync_data();
        file.close();
    } else if (store::is_there(files, mark)) {
        files.remove(mark);
    }
    files.sync_folder(path);
    if (!store::is_there(files, path)) {
        refuse("pin checkpoint", path, "it was removed meanwhile");
    }
}

void CheckpointStore::remove(std::uint64_t generation) {
    there(impl_).gate.check();
    const store::WriterGate::Hold hold(impl_->gate);
    impl_->begin_writing();
    const CheckpointEntry entry = impl_->entry_of("remove checkpoint", generation);
    impl_->check_own("remove checkpoint", entry, "delete it yourself");
    const std::string path = join(impl_->folders.front(), entry.name);
    if (store::is_there(impl_->files, join(path, store::kPinnedName))) {
        refuse("remove checkpoint", path, "it is pinned; unpin it first");
    }
    const auto newest = impl_->newest(Unreadable::kPassOver).found;
    if (newest && newest->info.generation == generation) {
        refuse("remove checkpoint", path,
               "it is the newest whole one, which is what a training goes on from; save another "
               "first, or delete the folder yourself");
    }
    impl_->forget({&entry.name, 1});
    store::Remover remover = impl_->remover();
    remover.remove({&entry.name, 1});
    if (!remover.left().empty() && store::is_there(impl_->files, path)) {
        refuse("remove checkpoint", path, remover.left().front());
    }
}

std::uint64_t CheckpointStore::collect() {
    there(impl_).gate.check();
    const store::WriterGate::Hold hold(impl_->gate);
    impl_->begin_writing();
    return impl_->remover().collect();
}

const std::vector<std::string>& CheckpointStore::folders() const {
    return there(impl_).folders;
}

}  // namespace penstock
