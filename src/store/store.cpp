// SPDX-License-Identifier: Apache-2.0
#include "base/path.hpp"
#include "format/fault.hpp"
#include "store/manifest/metadata.hpp"
#include "store/store_impl.hpp"

#include <fmt/format.h>

#include <functional>
#include <utility>

namespace penstock {

using store::CheckpointEntry;
using store::join;
using store::Newest;
using store::refuse;
using store::Unreadable;
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
    return there(impl_).save_next(state, options);
}

PendingSave CheckpointStore::save_async(State state, const SaveOptions& options,
                                        const AsyncOptions& async) {
    return there(impl_).save_async(std::move(state), options, async);
}

void CheckpointStore::refuse_save(const Error& why) {
    there(impl_).refuse_save(why);
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

std::optional<CheckpointInfo> CheckpointStore::load(const std::function<void(Loading)>& use,
                                                    const LoadOptions& options,
                                                    std::vector<CheckpointInfo>* skipped) {
    return there(impl_).load(use, options, skipped);
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
