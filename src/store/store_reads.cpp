// SPDX-License-Identifier: Apache-2.0
#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/random.hpp"
#include "format/utf8.hpp"
#include "store/ranks/rank_messages.hpp"
#include "store/store_impl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

using store::CheckpointEntry;
using store::Inspected;
using store::join;
using store::Newest;
using store::refuse;
using store::Unreadable;

namespace {

constexpr int kScansMax = 100;
constexpr const char* kOpenStore = "open checkpoint store";
constexpr std::string_view kNeeds = "it needs an engine, and one folder or more";

std::shared_ptr<Engine> given(std::shared_ptr<Engine> engine) {
    if (!engine) {
        refuse(kOpenStore, {}, kNeeds);
    }
    return engine;
}

}  // namespace

void store::refuse(const std::string& operation, const std::string& path, std::string_view why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, operation, why, path));
}

CheckpointStore::Impl::Impl(std::shared_ptr<Engine> with_engine, FileSystem with_files,
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
    if (options.at_path) {
        if (folders.size() != 1) {
            refuse(operation, folders.front(), "a checkpoint at a path has one folder; give one");
        }
        place.emplace(*engine, files, folders.front());
        place_path = place->path();
        folders.front() = place->work();
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
    if (options.ranks.count() > 1) {
        group.emplace(
            options.ranks, fmt::format("store{}", options.ranks.next_user()),
            std::vector<std::string>{store::kOfferStage, store::kStateStage, store::kAssignedStage,
                                     store::kReadyStage, store::kGoStage, store::kWrittenStage,
                                     store::kTakeStage, store::kCheckedStage, store::kFillStage,
                                     store::kFilledStage});
    }
    if (options.keep_best != 0 && options.metric.name.empty()) {
        refuse(operation, folders.front(),
               "keep_best needs the name of a metric, and this one is empty; give the name that "
               "the metadata of the saves has");
    }
}

CheckpointStore::Impl::~Impl() {
    if (saver && !gate.is_of_parent()) {  // others may share it; its saves need the rest
        saver->queue()->finish();
    }
}

void CheckpointStore::Impl::check_own(const std::string& operation, const CheckpointEntry& entry,
                                      std::string_view cure) const {
    const Folder folder = files.open_folder(folders.front());
    if (const std::string why = store::why_not_own(folder, entry.name); !why.empty()) {
        refuse(operation, join(folders.front(), entry.name),
               fmt::format("{}, and no checkpoint of the store's own; {}", why, cure));
    }
}

Newest CheckpointStore::Impl::newest(Unreadable unreadable, std::optional<std::uint64_t> step,
                                     const UseCheckpoint& use) const {
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

Checkpoint CheckpointStore::Impl::opened(const std::string& path) const {
    Checkpoint out(engine, files, path, options.cache);
    out.report_to(read_back);
    return out;
}

std::optional<Inspected> CheckpointStore::Impl::look_at(const CheckpointEntry& entry,
                                                        Unreadable unreadable,
                                                        const UseCheckpoint& use) const {
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

std::optional<CheckpointInfo> CheckpointStore::Impl::newest_for(
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

CheckpointEntry CheckpointStore::Impl::entry_of(const std::string& operation,
                                                std::uint64_t generation) const {
    const auto checkpoints = store::scan_folder(files, folders.front()).checkpoints;
    auto same = store::of_generation(checkpoints, generation);
    if (same.size() > 1) {
        refuse(operation, folders.front(), store::why_not_one(same));
    }
    if (same.empty()) {
        refuse(operation, folders.front(),
               fmt::format("there is no checkpoint of generation {}; there are {}", generation,
                           checkpoints.empty()
                               ? "none"
                               : fmt::format("{}, the newest of generation {}", checkpoints.size(),
                                             checkpoints.back().generation)));
    }
    return std::move(same.front());
}

}  // namespace penstock
