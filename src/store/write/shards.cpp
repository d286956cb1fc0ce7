// SPDX-License-Identifier: Apache-2.0
#include "store/write/shards.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace penstock::store {

namespace {

// Groups below this share of a shard are not worth a file of their own.
constexpr std::uint64_t kSmallestShare = 64;

struct Old {
    ShardPlan plan;
    bool changed = false;    // one of its tensors
    bool unchanged = false;  // one of its tensors
};

std::vector<Old> group_as_before(std::span<const TensorHistory> tensors, std::size_t shards) {
    std::vector<Old> old(shards);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].shard == kNoShard) {
            continue;
        }
        Old& shard = old[tensors[i].shard];
        shard.plan.tensors.push_back(i);
        shard.plan.bytes += tensors[i].bytes;
        (tensors[i].changed ? shard.changed : shard.unchanged) = true;
    }
    return old;
}

// Divides tensors, so that no part has two slices of one tensor.
std::vector<std::vector<std::size_t>> divide(std::span<const TensorHistory> tensors,
                                             std::span<const std::size_t> sorted) {
    std::vector<std::vector<std::size_t>> parts(1);
    std::unordered_map<std::size_t, std::size_t> seen;  // slices of each tensor
    for (std::size_t k = 0; k < sorted.size(); ++k) {
        const TensorHistory& tensor = tensors[sorted[k]];
        if (k > 0 && tensor.changed != tensors[sorted[k - 1]].changed) {
            seen.clear();  // they are cut there anyway
        }
        const std::size_t part = tensor.slice_of == kWhole ? 0 : seen[tensor.slice_of]++;
        parts.resize(std::max(parts.size(), part + 1));
        parts[part].push_back(sorted[k]);
    }
    return parts;
}

// Cuts tensors that are sorted by their history into shards.
void cut(std::span<const TensorHistory> tensors, std::span<const std::size_t> sorted,
         std::uint64_t shard_bytes, std::vector<ShardPlan>& out) {
    ShardPlan next;
    for (std::size_t k = 0; k < sorted.size(); ++k) {
        const TensorHistory& tensor = tensors[sorted[k]];
        if (k > 0) {
            const TensorHistory& before = tensors[sorted[k - 1]];
            const bool full = next.bytes > 0 && next.bytes + tensor.bytes > shard_bytes;
            const bool other = tensor.changed_before != before.changed_before &&
                               next.bytes >= shard_bytes / kSmallestShare;
            if (full || other || tensor.changed != before.changed) {
                out.push_back(std::exchange(next, {}));
            }
        }
        next.tensors.push_back(sorted[k]);
        next.bytes += tensor.bytes;
    }
    if (!next.tensors.empty()) {
        out.push_back(std::move(next));
    }
}

}  // namespace

std::vector<ShardPlan> plan_shards(std::span<const TensorHistory> tensors,
                                   std::span<const ShardHistory> last, std::uint64_t shard_bytes) {
    std::vector<Old> old = group_as_before(tensors, last.size());
    std::vector<ShardPlan> plans;
    std::vector<bool> placed(tensors.size(), false);
    const auto place = [&](ShardPlan&& plan) {
        for (const std::size_t i : plan.tensors) {
            placed[i] = true;
        }
        plans.push_back(std::move(plan));
    };
    for (std::size_t s = 0; s < old.size(); ++s) {
        const bool complete =
            !old[s].plan.tensors.empty() && old[s].plan.tensors.size() == last[s].tensors;
        if (complete && last[s].linkable && !old[s].changed) {
            old[s].plan.linked = s;
            place(std::move(old[s].plan));
        }
    }
    for (Old& shard : old) {
        // Small shards are cut again, with others of their history.
        const bool large = shard.plan.bytes >= shard_bytes / 2;
        const bool fits = shard.plan.tensors.size() == 1 || shard.plan.bytes / 2 <= shard_bytes;
        if (shard.changed && !shard.unchanged && large && fits) {
            place(std::move(shard.plan));
        }
    }
    std::vector<std::size_t> rest;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (!placed[i]) {
            rest.push_back(i);
        }
    }
    std::stable_sort(rest.begin(), rest.end(), [&](std::size_t a, std::size_t b) {
        return std::tuple(!tensors[a].changed, tensors[a].changed_before) <
               std::tuple(!tensors[b].changed, tensors[b].changed_before);
    });
    for (const std::vector<std::size_t>& part : divide(tensors, rest)) {
        cut(tensors, part, shard_bytes, plans);
    }
    return plans;
}

}  // namespace penstock::store
