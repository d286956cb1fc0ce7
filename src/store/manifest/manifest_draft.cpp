// SPDX-License-Identifier: Apache-2.0
#include "store/manifest/manifest_draft.hpp"

#include "base/text/hex.hpp"
#include "store/write/state_check.hpp"
#include "stream/checksum.hpp"

#include <memory_resource>
#include <string_view>
#include <unordered_map>

namespace penstock::store {

ManifestDraft::ManifestDraft(const SavePlan& plan, const std::function<std::uint64_t()>& random) {
    manifest_.generation = plan.generation;
    manifest_.step = plan.step;
    manifest_.saved_unix_ns = plan.saved_unix_ns;
    manifest_.folders = {""};
    manifest_.structure = plan.state.structure;
    manifest_.metadata = plan.metadata;
    manifest_.store = plan.store;
    add_tensors(plan);
    for (const SavePart& part : plan.parts) {
        if (part.is_written()) {
            add_written(plan, part, random);
        } else {
            add_linked(plan, part);
        }
    }
}

void ManifestDraft::add_tensors(const SavePlan& plan) {
    slice_of_.reserve(plan.state.tensors.size());
    std::pmr::monotonic_buffer_resource nodes;
    std::pmr::unordered_map<std::string_view, std::size_t> tensors(&nodes);
    manifest_.tensors.reserve(plan.state.tensors.size());
    tensors.reserve(plan.state.tensors.size());
    for (std::size_t i = 0; i < plan.state.tensors.size(); ++i) {
        const StateTensor& tensor = plan.state.tensors[i];
        const auto [found, is_new] = tensors.emplace(tensor.name, manifest_.tensors.size());
        if (is_new) {
            manifest_.tensors.push_back({tensor.name, tensor.dtype, global_shape(tensor), {}});
        }
        std::vector<Slice>& slices = manifest_.tensors[found->second].slices;
        slice_of_.emplace_back(found->second, slices.size());
        Slice slice;
        slice.shape = tensor.shape;
        slice.offset = tensor.global_offset;
        slice.offset.resize(tensor.shape.size(), 0);
        slice.bytes = tensor.data.bytes;
        slice.changed = plan.changed[i] ? plan.generation : plan.before[i]->changed;
        slices.push_back(std::move(slice));
    }
}

void ManifestDraft::add_linked(const SavePlan& plan, const SavePart& part) {
    const auto number = static_cast<std::uint32_t>(manifest_.shards.size());
    manifest_.shards.push_back(plan.last.manifest.shards[part.linked]);
    manifest_.shards.back().folder = 0;  // until its folder has a place in the list
    for (const std::size_t i : part.tensors) {
        Slice& slice = slice_of(i);
        slice.shard = number;
        slice.begin = plan.before[i]->begin;
        slice.sums = plan.before[i]->sums;
    }
}

void ManifestDraft::add_written(const SavePlan& plan, const SavePart& part,
                                const std::function<std::uint64_t()>& random) {
    const auto number = static_cast<std::uint32_t>(manifest_.shards.size());
    Shard& shard = manifest_.shards.emplace_back();
    shard.file = part.file;
    shard.generation = plan.generation;
    // Random, and unique even if a fixed seed repeats the random numbers.
    base::append_hex(shard.id, stream::bind(random(), part.file, plan.generation, 0));
    base::append_hex(shard.id, stream::bind(random(), part.file, plan.generation, 1));
    shard.header_bytes = part.layout->data_begin();
    shard.bytes = part.layout->file().total_bytes();
    for (std::size_t k = 0; k < part.tensors.size(); ++k) {
        Slice& slice = slice_of(part.tensors[k]);
        slice.shard = number;
        slice.begin = part.layout->data_begin() + part.layout->tensors()[k].begin;
    }
    manifest_.written_bytes += part.bytes;
}

void ManifestDraft::name_folders(const SavePlan& plan, std::span<const std::string> parts_folders) {
    std::vector<std::uint32_t> numbers(parts_folders.size(), 0);
    for (std::size_t i = 1; i < parts_folders.size(); ++i) {
        if (!parts_folders[i].empty()) {
            numbers[i] = static_cast<std::uint32_t>(manifest_.folders.size());
            manifest_.folders.push_back(parts_folders[i]);
        }
    }
    for (std::size_t i = 0; i < plan.parts.size(); ++i) {
        manifest_.shards[i].folder = numbers[plan.parts[i].folder];
    }
}

void ManifestDraft::fill_sums(const SavePlan& plan, ChunkSums& sums,
                              const stream::WindowSums& written) {
    for (std::size_t i = 0; i < plan.parts.size(); ++i) {
        const SavePart& part = plan.parts[i];
        if (!part.is_written()) {
            continue;
        }
        Shard& shard = manifest_.shards[i];
        const std::string_view header = part.layout->file().literals();
        shard.header_sum = stream::bind(stream::content_hash(std::as_bytes(std::span(header))),
                                        shard.id, shard.generation, 0);
        for (const std::size_t tensor : part.tensors) {
            Slice& slice = slice_of(tensor);
            if (!sums.take(tensor, written.sums(tensor))) {
                slice.changed = plan.generation;  // since the save looked (Changing::kTorn)
            }
            slice.sums = sums.bound(tensor, shard, slice.begin);
        }
    }
}

Slice& ManifestDraft::slice_of(std::size_t tensor) {
    const auto [index, slice] = slice_of_[tensor];
    return manifest_.tensors[index].slices[slice];
}

}  // namespace penstock::store
