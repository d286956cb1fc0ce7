// SPDX-License-Identifier: Apache-2.0
#include "store/write/save_plan.hpp"

#include "base/assert.hpp"
#include "base/raise.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/stock_index.hpp"
#include "store/write/state_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory_resource>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace penstock::store {

namespace {

// With several folders each gets a few shards, so that their speeds even out.
constexpr std::uint64_t kShardsPerFolder = 4;
constexpr std::uint64_t kShardBytesMin = std::uint64_t{1} << 20;

bool is_place_of(const Slice& slice, const StateTensor& tensor) {
    if (slice.shape != tensor.shape) {
        return false;
    }
    return tensor.global_offset.empty() ? std::all_of(slice.offset.begin(), slice.offset.end(),
                                                      [](std::uint64_t at) { return at == 0; })
                                        : slice.offset == tensor.global_offset;
}

std::vector<ShardHistory> shard_histories(const Manifest& last, std::span<const ShardThere> there) {
    std::vector<ShardHistory> shards(there.size());
    for (std::size_t s = 0; s < shards.size(); ++s) {
        shards[s].linkable = there[s].linkable;
    }
    for (const Tensor& tensor : last.tensors) {
        for (const Slice& slice : tensor.slices) {
            shards.empty() ? 0 : ++shards[slice.shard].tensors;
        }
    }
    return shards;
}

std::vector<TensorHistory> tensor_histories(const SavePlan& plan) {
    PENSTOCK_ASSERT(plan.changed.size() == plan.state.tensors.size());
    PENSTOCK_ASSERT(plan.before.size() == plan.state.tensors.size());
    std::vector<TensorHistory> tensors(plan.state.tensors.size());
    std::unordered_map<std::string_view, std::size_t> sliced;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (is_slice(plan.state.tensors[i])) {
            tensors[i].slice_of =
                sliced.emplace(plan.state.tensors[i].name, sliced.size()).first->second;
        }
        tensors[i].bytes = plan.state.tensors[i].data.bytes;
        tensors[i].changed = plan.changed[i];
        if (plan.before[i] != nullptr) {
            tensors[i].shard = plan.before[i]->shard;
            tensors[i].changed_before = plan.before[i]->changed;
        }
    }
    return tensors;
}

std::uint64_t bytes_of_a_shard(const State& state, std::uint64_t wanted, std::size_t folders) {
    if (folders < 2) {
        return std::max<std::uint64_t>(wanted, 1);
    }
    std::uint64_t total = 0;
    for (const StateTensor& tensor : state.tensors) {
        total += tensor.data.bytes;
    }
    return std::min(std::max<std::uint64_t>(wanted, 1),
                    std::max(total / (kShardsPerFolder * folders), kShardBytesMin));
}

bool has_slices(const SavePlan& plan, const SavePart& part) {
    return std::any_of(part.tensors.begin(), part.tensors.end(),
                       [&](std::size_t i) { return is_slice(plan.state.tensors[i]); });
}

// A linked shard keeps its name, so that tools that copy folders find it unchanged.
void name_parts(SavePlan& plan) {
    std::unordered_set<std::string_view> names;
    for (SavePart& part : plan.parts) {
        if (!part.is_written()) {
            part.file = plan.last.manifest.shards[part.linked].file;
            names.insert(part.file);
        }
    }
    if (!plan.share.name.empty()) {  // other ranks link the other shards of the last checkpoint
        for (const Shard& shard : plan.last.manifest.shards) {
            names.insert(shard.file);
        }
    }
    std::uint64_t number = plan.share.shards_after;
    for (SavePart& part : plan.parts) {
        while (part.is_written() && (part.file.empty() || names.contains(part.file))) {
            part.file = shard_name(++number, has_slices(plan, part));
        }
    }
}

std::string places_in(const SavePlan& plan, const SavePart& part) {
    static constexpr std::array<std::uint64_t, format::safetensors::kRankMax> kZeros{};
    std::vector<StockPlace> places;
    places.reserve(part.tensors.size());
    for (const std::size_t i : part.tensors) {
        const StateTensor& tensor = plan.state.tensors[i];
        places.push_back({tensor.name, tensor.global_offset.empty()
                                           ? std::span(kZeros).first(tensor.shape.size())
                                           : std::span(tensor.global_offset)});
    }
    return stock_places(places);
}

void lay_out(const SavePlan& plan, SavePart& part) {
    std::vector<format::safetensors::Tensor> tensors;
    tensors.reserve(part.tensors.size());
    for (const std::size_t i : part.tensors) {
        tensors.push_back(plan.entries[i]);
    }
    format::safetensors::Metadata metadata{{"format", "pt"}};
    if (plan.has_places) {
        metadata.emplace_back(kStockPlacesKey, places_in(plan, part));
    }
    part.layout = std::make_unique<format::safetensors::Layout>(
        base::unwrap(format::safetensors::Layout::make(std::move(tensors), metadata)));
}

// The reason why unchanged tensors are written all the same, or empty.
std::string note_on_edits(const SavePlan& plan, std::span<const ShardThere> there) {
    for (std::size_t i = 0; i < plan.before.size(); ++i) {
        if (plan.before[i] == nullptr || plan.changed[i] ||
            there[plan.before[i]->shard].edited.empty()) {
            continue;
        }
        return fmt::format(
            "unchanged tensors were written again, for another program wrote to {} since, or "
            "copied it without its time of modification; 'penstock checkpoint verify' tells "
            "whether that damaged it",
            there[plan.before[i]->shard].edited);
    }
    return {};
}

}  // namespace

std::vector<const Slice*> find_before(const State& state, const Manifest& last) {
    std::vector<const Slice*> before(state.tensors.size(), nullptr);
    std::pmr::monotonic_buffer_resource nodes;
    std::pmr::unordered_map<std::string_view, const Tensor*> tensors(&nodes);
    tensors.reserve(last.tensors.size());
    for (const Tensor& tensor : last.tensors) {
        tensors.emplace(tensor.name, &tensor);
    }
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        const StateTensor& tensor = state.tensors[i];
        const auto found = tensors.find(tensor.name);
        if (found == tensors.end() || found->second->dtype != tensor.dtype ||
            found->second->shape != global_shape(tensor)) {
            continue;
        }
        for (const Slice& slice : found->second->slices) {
            if (is_place_of(slice, tensor) &&
                (!is_slice(tensor) || is_name_of_slices(last.shards.at(slice.shard).file))) {
                before[i] = &slice;
            }
        }
    }
    return before;
}

void plan_parts(SavePlan& plan, std::span<const ShardThere> there, std::uint64_t shard_bytes,
                std::size_t folders) {
    plan.has_places = !plan.share.name.empty() ||
                      std::any_of(plan.state.tensors.begin(), plan.state.tensors.end(), is_slice);
    const std::vector<ShardHistory> shards = shard_histories(plan.last.manifest, there);
    for (ShardPlan& shard : plan_shards(tensor_histories(plan), shards,
                                        bytes_of_a_shard(plan.state, shard_bytes, folders))) {
        SavePart& part = plan.parts.emplace_back();
        part.tensors = std::move(shard.tensors);
        part.bytes = shard.bytes;
        part.linked = shard.linked;
        PENSTOCK_ASSERT(part.is_written() || part.linked < there.size());
        part.folder = part.is_written() ? 0 : there[part.linked].folder;
    }
    name_parts(plan);
    for (SavePart& part : plan.parts) {
        if (part.is_written()) {
            lay_out(plan, part);
        }
    }
    plan.note = note_on_edits(plan, there);
}

void write_instead(SavePlan& plan, SavePart& part) {
    PENSTOCK_ASSERT(!part.is_written());
    part.linked = kNoShard;
    lay_out(plan, part);
}

}  // namespace penstock::store
