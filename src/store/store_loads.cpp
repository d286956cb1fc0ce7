// SPDX-License-Identifier: Apache-2.0
#include "store/ranks/rank_load.hpp"
#include "store/ranks/rank_save.hpp"
#include "store/store_impl.hpp"

#include <chrono>
#include <exception>
#include <mutex>
#include <utility>

namespace penstock {

using store::LoadLeader;

std::optional<CheckpointInfo> CheckpointStore::Impl::find(
    const LoadOptions& wanted, const UseCheckpoint& use,
    std::vector<CheckpointInfo>* skipped) const {
    if (!wanted.generation) {
        return newest_for(wanted.step, use, skipped);
    }
    const store::CheckpointEntry entry = entry_of("load checkpoint", *wanted.generation);
    Checkpoint asked = opened(store::join(folders.front(), entry.name));
    CheckpointInfo info = asked.info();
    use(std::move(asked));
    return info;
}

std::optional<CheckpointInfo> CheckpointStore::Impl::lead_load(
    LoadLeader& leader, const LoadOptions& wanted, std::vector<CheckpointInfo>* skipped) const {
    std::vector<CheckpointInfo> passed_over;
    try {
        std::optional<CheckpointInfo> found;
        try {
            found = find(
                wanted, [&](Checkpoint opened_one) { leader.load(std::move(opened_one)); },
                &passed_over);
        } catch (const LoadLeader::Over& over) {
            std::rethrow_exception(over.why);
        }
        leader.end(found.has_value(), passed_over);
        skipped != nullptr ? void(*skipped = std::move(passed_over)) : void();
        return found;
    } catch (...) {
        leader.fail(store::error_of(std::current_exception(), store::kRankLoad));
        skipped != nullptr ? void(*skipped = std::move(passed_over)) : void();
        throw;
    }
}

std::optional<CheckpointInfo> CheckpointStore::Impl::load(const std::function<void(Loading)>& use,
                                                          const LoadOptions& wanted,
                                                          std::vector<CheckpointInfo>* skipped) {
    if (!group) {
        return find(
            wanted,
            [&](Checkpoint opened_one) {
                use({.checkpoint = std::move(opened_one), .ready = [] {}, .progress = {}});
            },
            skipped);
    }
    gate.check_not_inside();
    if (gate.is_of_parent()) {
        gate.check();
    }
    const std::lock_guard guard(turns);
    ranks::Turn turn(*group, store::kRankLoad);
    try {
        gate.check();
        if (const auto own = saver_made(false)) {  // they are earlier, and come first
            own->queue()->finish();
        }
        const store::WriterGate::Hold hold(gate);
        const ranks::Waiting waiting{.limit = std::chrono::milliseconds(options.rank_wait_ms),
                                     .look = wanted.look,
                                     .report = wanted.waiting};
        const store::LoadContext context{
            .engine = *engine,
            .files = files,
            .folder = folders.front(),
            .group = *group,
            .options = wanted,
            .waiting = waiting,
            .use = use,
            .open = [this](const std::string& path) { return opened(path); }};
        if (group->ranks().number() != 0) {
            return store::follow_load(context, turn, skipped);
        }
        LoadLeader leader(context, turn);
        return lead_load(leader, wanted, skipped);
    } catch (...) {
        turn.refuse(store::error_of(std::current_exception(), store::kRankLoad));
        throw;
    }
}

}  // namespace penstock
