// SPDX-License-Identifier: Apache-2.0
#include "store/keep/retention.hpp"

#include "base/assert.hpp"
#include "store/keep/removal.hpp"
#include "store/manifest/metadata.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace penstock::store {

namespace {

std::vector<std::size_t> newest_first(std::size_t count) {
    std::vector<std::size_t> out(count);
    std::iota(out.rbegin(), out.rend(), std::size_t{0});
    return out;
}

// Gives the checkpoints of each step that is kept, the newest first.
std::map<std::uint64_t, std::vector<std::size_t>> by_kept_step(
    std::span<const CheckpointInfo> checkpoints, const StoreOptions& options) {
    std::map<std::uint64_t, std::vector<std::size_t>> out;
    for (std::size_t i = checkpoints.size(); options.keep_every_steps != 0 && i-- > 0;) {
        if (checkpoints[i].step % options.keep_every_steps == 0) {
            out[checkpoints[i].step].push_back(i);
        }
    }
    return out;
}

}  // namespace

std::vector<std::size_t> ranked(std::span<const CheckpointInfo> checkpoints, const Metric& metric) {
    std::vector<std::pair<double, std::size_t>> found;
    for (std::size_t i = checkpoints.size(); i-- > 0;) {
        if (const auto number = number_in(checkpoints[i].metadata, metric.name)) {
            found.emplace_back(metric.greater_is_better ? -*number : *number, i);
        }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::size_t> out;
    std::transform(found.begin(), found.end(), std::back_inserter(out),
                   [](const auto& row) { return row.second; });
    return out;
}

std::vector<CheckpointInfo> best_of(std::span<const CheckpointInfo> checkpoints,
                                    const Metric& metric, std::size_t count) {
    std::vector<std::size_t> indices = ranked(checkpoints, metric);
    indices.resize(std::min(count, indices.size()));
    std::vector<CheckpointInfo> out;
    std::transform(indices.begin(), indices.end(), std::back_inserter(out),
                   [&](std::size_t i) { return checkpoints[i]; });
    return out;
}

std::uint32_t newest_kept(const StoreOptions& options) {
    return options.keep == 0 && options.keep_best != 0 ? 1 : options.keep;
}

std::vector<std::size_t> outdated(std::span<const CheckpointInfo> checkpoints,
                                  const StoreOptions& options) {
    const std::uint32_t keep = newest_kept(options);
    std::vector<std::size_t> out;
    if (keep == 0) {
        return out;
    }
    std::vector<bool> kept(checkpoints.size(), false);
    const auto keep_first = [&](std::size_t count, const auto& indices) {
        std::set<std::uint64_t> whole;
        for (const std::size_t i : indices) {
            const CheckpointInfo& info = checkpoints[i];
            if (whole.size() < count || whole.contains(info.generation)) {
                kept[i] = true;
                if (info.problem.empty()) {
                    whole.insert(info.generation);
                }
            }
        }
    };
    keep_first(keep, newest_first(checkpoints.size()));
    keep_first(options.keep_best, ranked(checkpoints, options.metric));
    for (const auto& [step, newest] : by_kept_step(checkpoints, options)) {
        keep_first(1, newest);
    }
    for (std::size_t i = 0; i < checkpoints.size(); ++i) {
        const CheckpointInfo& info = checkpoints[i];
        const std::uint32_t every = options.keep_every;
        if (!kept[i] && !info.pinned && (every == 0 || info.generation % every != 0)) {
            out.push_back(i);
        }
    }
    PENSTOCK_ASSERT(checkpoints.empty() || out.size() < checkpoints.size());  // the newest stays
    return out;
}

void Retention::remember(const std::string& name, const Manifest& manifest, std::uint64_t hash) {
    Known known;
    known.hash = hash;
    known.manifest.generation = manifest.generation;
    known.manifest.folders = manifest.folders;
    known.manifest.shards = manifest.shards;
    known.manifest.metadata = manifest.metadata;
    known.manifest.store = manifest.store;
    known_[name] = std::move(known);
}

void Retention::saved(const std::string& name, const Manifest& manifest, std::uint64_t hash) {
    read_back_.forget(name);
    ++saves_since_;
    remember(name, manifest, hash);
}

Outdated Retention::outdated(const Read& read) {
    Outdated out;
    const auto checkpoints = scan_folder(files_, folder()).checkpoints;
    const std::uint32_t keep = newest_kept(options_);
    if (keep == 0 || checkpoints.size() <= keep) {
        return out;
    }
    std::vector<CheckpointInfo> infos = own(checkpoints, out.left);
    std::vector<std::size_t> chosen = choose(checkpoints, infos);
    if (!chosen.empty() && options_.read_back && options_.checksums) {
        const std::size_t bad_before = out.left.size() + out.damaged.size();
        const auto good = find_good(checkpoints, infos, read, out);
        if (!good) {
            return out;
        }
        if (out.left.size() + out.damaged.size() != bad_before) {
            chosen = choose(checkpoints, infos);
        }
        std::erase(chosen, *good);
    }
    for (const std::size_t i : chosen) {
        out.names.push_back(checkpoints[i].name);
    }
    return out;
}

std::vector<std::size_t> Retention::choose(std::span<const CheckpointEntry> checkpoints,
                                           std::vector<CheckpointInfo>& infos) {
    check_first(newest_kept(options_), newest_first(infos.size()), checkpoints, infos);
    if (options_.keep_best != 0) {
        add_metadata(checkpoints, infos);
        check_first(options_.keep_best, ranked(infos, options_.metric), checkpoints, infos);
    }
    for (const auto& [step, newest] : by_kept_step(infos, options_)) {
        if (newest.size() > 1) {
            check_first(1, newest, checkpoints, infos);
        }
    }
    return store::outdated(infos, options_);
}

// One that was read, and of which nothing went since.
std::optional<std::size_t> Retention::known_good(std::span<const CheckpointEntry> checkpoints,
                                                 std::span<const CheckpointInfo> infos) {
    for (std::size_t i = infos.size(); i-- > 0;) {
        if (infos[i].problem.empty() && read_back_.is_good(checkpoints[i].name) &&
            is_whole(checkpoints[i])) {
            return i;
        }
    }
    return std::nullopt;
}

// The newest checkpoint that is known to be good, once one was read if it is time for that.
std::optional<std::size_t> Retention::find_good(std::span<const CheckpointEntry> checkpoints,
                                                std::vector<CheckpointInfo>& infos,
                                                const Read& read, Outdated& out) {
    const std::optional<std::size_t> known = known_good(checkpoints, infos);
    if (known && (*known == infos.size() - 1 || saves_since_ < kSavesPerReadBack)) {
        return known;
    }
    saves_since_ = 0;
    for (std::size_t i = infos.size(); i-- > (known ? *known + 1 : 0);) {
        if (!infos[i].problem.empty() || !is_whole(checkpoints[i])) {
            continue;
        }
        const std::string path = join(folder(), checkpoints[i].name);
        try {
            const std::vector<CheckpointProblem> problems = read(path);
            if (problems.empty()) {
                read_back_.found_good(checkpoints[i].name);
                return i;
            }
            read_back_.found_damaged(checkpoints[i].name);
            infos[i].problem = "it is damaged";
            out.damaged.push_back({path, problems.front()});
        } catch (const Error& error) {
            if (!may_concern_it_alone(error)) {
                throw;
            }
            infos[i].problem = "it cannot be read";
            out.left.push_back(fmt::format("'{}' could not be read back: {}", path, error.what()));
        }
        if (known) {
            break;  // one is read, not all
        }
    }
    return known;
}

// Generation, step and pin. What is not the store's own, or cannot be looked at, is in `left`, and
// as if it were pinned.
std::vector<CheckpointInfo> Retention::own(std::span<const CheckpointEntry> checkpoints,
                                           std::vector<std::string>& left) const {
    const Folder opened = files_.open_folder(folder());
    std::vector<CheckpointInfo> infos(checkpoints.size());
    for (std::size_t i = checkpoints.size(); i-- > 0;) {
        const std::string path = join(folder(), checkpoints[i].name);
        infos[i].generation = checkpoints[i].generation;
        infos[i].step = checkpoints[i].step;
        std::string why;
        try {
            why = why_not_own(opened, checkpoints[i].name);
            infos[i].pinned = !why.empty() || is_there(files_, join(path, kPinnedName));
        } catch (const Error& error) {
            why = error.what();
            infos[i].pinned = true;
        }
        if (!why.empty()) {
            left.push_back(fmt::format("'{}' was left: {}", path, why));
        }
        infos[i].problem = std::move(why);
        if (infos[i].problem.empty() && read_back_.is_damaged(checkpoints[i].name)) {
            infos[i].problem = "it is damaged";
        }
    }
    return infos;
}

// Looks at checkpoints in the order of `indices`, until `count` are found whole.
void Retention::check_first(std::size_t count, std::span<const std::size_t> indices,
                            std::span<const CheckpointEntry> checkpoints,
                            std::vector<CheckpointInfo>& infos) {
    std::set<std::uint64_t> whole;  // two of one generation count once
    for (std::size_t k = 0; k < indices.size() && whole.size() < count; ++k) {
        CheckpointInfo& info = infos[indices[k]];
        if (info.problem.empty() && !is_whole(checkpoints[indices[k]])) {
            info.problem = "it is not whole";
        }
        if (info.problem.empty()) {
            whole.insert(info.generation);
        }
    }
}

// Checks the disk now: an older checkpoint is removed because this one stays. Another store's does
// not count: it is not removed either.
bool Retention::is_whole(const CheckpointEntry& entry) {
    const std::string path = join(folder(), entry.name);
    const auto known = known_.find(entry.name);
    if (known != known_.end() && has_hash(engine_, files_, path, known->second.hash)) {
        try {
            return owner_.is_own(known->second.manifest.store) &&
                   missing_shard(files_, known->second.manifest, path).empty();
        } catch (const Error&) {
            return false;
        }
    }
    const auto found = inspect(engine_, files_, folder(), entry);
    if (!found || !found->info.problem.empty()) {
        return false;
    }
    remember(entry.name, found->manifest, found->manifest_hash);
    return owner_.is_own(found->manifest.store);
}

// The values by which the best are found. A manifest that the system refuses to give may be that of
// the best: its checkpoint is kept this time. What has a problem (a copy under another number) is
// not remembered: is_whole() asks what it remembers for no more than its shards.
void Retention::add_metadata(std::span<const CheckpointEntry> checkpoints,
                             std::vector<CheckpointInfo>& infos) {
    for (std::size_t i = 0; i < infos.size(); ++i) {
        if (!infos[i].problem.empty()) {
            continue;
        }
        const std::string& name = checkpoints[i].name;
        if (!known_.contains(name)) {
            const auto found = inspect(engine_, files_, folder(), checkpoints[i]);
            if (found && found->error && !found->error->is_about_the_file()) {
                infos[i].pinned = true;
            }
            if (!found || found->error) {
                continue;
            }
            if (!found->info.problem.empty()) {
                infos[i].problem = found->info.problem;
                infos[i].metadata = found->manifest.metadata;
                continue;
            }
            remember(name, found->manifest, found->manifest_hash);
        }
        infos[i].metadata = known_.at(name).manifest.metadata;
    }
}

bool has_hash(Engine& engine, const FileSystem& files, const std::string& checkpoint,
              std::uint64_t hash) {
    try {
        const std::string text = read_manifest_text(engine, files, checkpoint);
        return stream::content_hash(std::as_bytes(std::span(text))) == hash;
    } catch (const Error&) {
        return false;
    }
}

}  // namespace penstock::store
