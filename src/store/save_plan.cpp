// SPDX-License-Identifier: Apache-2.0
// The part of a save that touches no disk but to look: what changed, what goes where, and the
// manifest as far as it is known before a byte is written.
#include "base/hex.hpp"
#include "base/raise.hpp"
#include "store/manifest_check.hpp"
#include "store/save_job.hpp"
#include "store/shard_time.hpp"
#include "store/store_folder.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory_resource>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace penstock::store {

namespace {

// With several folders each gets a few shards, so that their speeds even out.
constexpr std::uint64_t kShardsPerFolder = 4;
constexpr std::uint64_t kShardBytesMin = std::uint64_t{1} << 20;

const std::vector<std::uint64_t>& global_shape(const StateTensor& tensor) {
    return tensor.global_shape.empty() ? tensor.shape : tensor.global_shape;
}

bool is_place_of(const Slice& slice, const StateTensor& tensor) {
    if (slice.shape != tensor.shape) {
        return false;
    }
    return tensor.global_offset.empty() ? std::all_of(slice.offset.begin(), slice.offset.end(),
                                                      [](std::uint64_t at) { return at == 0; })
                                        : slice.offset == tensor.global_offset;
}

}  // namespace

void SaveJob::find_before() {
    before_.assign(state_.tensors.size(), nullptr);
    if (last_.path.empty() || !context_.options.incremental || !context_.options.checksums) {
        return;
    }
    std::pmr::monotonic_buffer_resource nodes;
    std::pmr::unordered_map<std::string_view, const Tensor*> tensors(&nodes);
    tensors.reserve(last_.manifest.tensors.size());
    for (const Tensor& tensor : last_.manifest.tensors) {
        tensors.emplace(tensor.name, &tensor);
    }
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
        const StateTensor& tensor = state_.tensors[i];
        const auto found = tensors.find(tensor.name);
        if (found == tensors.end() || found->second->dtype != tensor.dtype ||
            found->second->shape != global_shape(tensor)) {
            continue;
        }
        for (const Slice& slice : found->second->slices) {
            if (is_place_of(slice, tensor)) {
                before_[i] = &slice;
            }
        }
    }
}

// There with its size, in a folder that this store has, and nobody wrote to it since. `edited`: its
// path, where somebody did.
bool SaveJob::is_linkable(const Shard& shard, std::uint32_t& folder, std::string& edited) const {
    const std::string path = shard_path(last_.manifest, shard, last_.path);
    folder = 0;
    if (shard.folder != 0) {
        const std::string& parts = last_.manifest.folders.at(shard.folder);
        const auto base = std::find(context_.folders.begin() + 1, context_.folders.end(),
                                    parts.substr(0, parts.rfind('/')));
        if (base == context_.folders.end()) {
            return false;
        }
        folder = static_cast<std::uint32_t>(base - context_.folders.begin());
    }
    try {
        const FileStatus status = context_.files.status(path);
        if (status.kind != FileKind::kFile || status.bytes != shard.bytes) {
            return false;
        }
        edited = has_its_time(shard, status, last_.manifest.saved_unix_ns) ? "" : path;
        return edited.empty();
    } catch (const Error&) {
        return false;  // then it is written
    }
}

void SaveJob::plan() {
    std::vector<ShardHistory> shards(last_.path.empty() ? 0 : last_.manifest.shards.size());
    std::vector<std::uint32_t> folders(shards.size(), 0);
    std::vector<std::string> edited(shards.size());
    const bool known = std::any_of(before_.begin(), before_.end(), [](auto* s) { return s; });
    for (std::size_t s = 0; s < shards.size(); ++s) {
        shards[s].linkable = known && is_linkable(last_.manifest.shards[s], folders[s], edited[s]);
    }
    for (const Tensor& tensor : last_.manifest.tensors) {
        for (const Slice& slice : tensor.slices) {
            shards.empty() ? 0 : ++shards[slice.shard].tensors;
        }
    }
    std::vector<TensorHistory> tensors(state_.tensors.size());
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        tensors[i].bytes = state_.tensors[i].data.size();
        total += tensors[i].bytes;
        tensors[i].changed = changed_[i];
        if (before_[i] != nullptr) {
            tensors[i].shard = before_[i]->shard;
            tensors[i].changed_before = before_[i]->changed;
            if (const std::string& path = edited[before_[i]->shard];
                !changed_[i] && !path.empty() && note_.empty()) {
                note_ = fmt::format(
                    "unchanged tensors were written again, for another program wrote to {} since, "
                    "or copied it without its time of modification; 'penstock checkpoint verify' "
                    "tells whether that damaged it",
                    path);
            }
        }
    }
    std::uint64_t shard_bytes = std::max<std::uint64_t>(context_.options.shard_bytes, 1);
    if (context_.folders.size() > 1) {
        const std::uint64_t share = total / (kShardsPerFolder * context_.folders.size());
        shard_bytes = std::min(shard_bytes, std::max(share, kShardBytesMin));
    }
    std::unordered_set<std::string> names;
    for (ShardPlan& shard : plan_shards(tensors, shards, shard_bytes)) {
        Part part;
        part.plan = std::move(shard);
        if (part.plan.linked != kNoShard) {
            part.folder = folders[part.plan.linked];
            part.file = last_.manifest.shards[part.plan.linked].file;
            names.insert(part.file);
        }
        parts_.push_back(std::move(part));
    }
    // A linked shard keeps its name, so that tools that copy folders find it unchanged.
    std::uint32_t number = 0;
    for (Part& part : parts_) {
        while (part.file.empty() || (part.plan.linked == kNoShard && names.contains(part.file))) {
            part.file = shard_name(++number);
        }
    }
    for (Part& part : parts_) {
        if (part.plan.linked == kNoShard) {
            lay_out(part);
        }
    }
}

void SaveJob::lay_out(Part& part) {
    std::vector<format::safetensors::Tensor> tensors;
    tensors.reserve(part.plan.tensors.size());
    for (const std::size_t i : part.plan.tensors) {
        tensors.push_back(entries_[i]);
    }
    part.layout = std::make_unique<format::safetensors::Layout>(
        base::unwrap(format::safetensors::Layout::make(std::move(tensors), {{"format", "pt"}})));
}

void SaveJob::draft_manifest() {
    manifest_ = {};
    manifest_.generation = generation_;
    manifest_.step = options_.step;
    manifest_.saved_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                  std::chrono::system_clock::now().time_since_epoch())
                                  .count();
    manifest_.folders = {""};
    manifest_.structure = state_.structure;
    manifest_.metadata = state_.metadata;
    slice_of_.assign(state_.tensors.size(), {0, 0});
    std::pmr::monotonic_buffer_resource nodes;
    std::pmr::unordered_map<std::string_view, std::size_t> tensors(&nodes);
    manifest_.tensors.reserve(state_.tensors.size());
    tensors.reserve(state_.tensors.size());
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
        const StateTensor& tensor = state_.tensors[i];
        const auto [found, is_new] = tensors.emplace(tensor.name, manifest_.tensors.size());
        if (is_new) {
            manifest_.tensors.push_back({tensor.name, tensor.dtype, global_shape(tensor), {}});
        }
        std::vector<Slice>& slices = manifest_.tensors[found->second].slices;
        slice_of_[i] = {found->second, slices.size()};
        Slice slice;
        slice.shape = tensor.shape;
        slice.offset = tensor.global_offset;
        slice.offset.resize(tensor.shape.size(), 0);
        slice.bytes = tensor.data.size();
        slice.changed = changed_[i] ? generation_ : before_[i]->changed;
        slices.push_back(std::move(slice));
    }
    for (const Part& part : parts_) {
        add_shard(part);
    }
}

void SaveJob::check_draft() const {
    if (const std::string wrong = check_manifest(manifest_); !wrong.empty()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint", wrong));
    }
}

void SaveJob::add_shard(const Part& part) {
    const auto number = static_cast<std::uint32_t>(manifest_.shards.size());
    if (part.plan.linked != kNoShard) {
        manifest_.shards.push_back(last_.manifest.shards[part.plan.linked]);
        manifest_.shards.back().folder = 0;  // until its folder has a place in the list
        for (const std::size_t i : part.plan.tensors) {
            Slice& slice = slice_in_manifest(i);
            slice.shard = number;
            slice.begin = before_[i]->begin;
            slice.sums = before_[i]->sums;
        }
        return;
    }
    Shard shard;
    shard.file = part.file;
    shard.generation = generation_;
    // Random, and no other even where a seed makes the random numbers come again.
    base::append_hex(shard.id, stream::bind(context_.random(), part.file, generation_, 0));
    base::append_hex(shard.id, stream::bind(context_.random(), part.file, generation_, 1));
    shard.header_bytes = part.layout->data_begin();
    shard.bytes = part.layout->file().total_bytes();
    manifest_.shards.push_back(std::move(shard));
    for (std::size_t k = 0; k < part.plan.tensors.size(); ++k) {
        Slice& slice = slice_in_manifest(part.plan.tensors[k]);
        slice.shard = number;
        slice.begin = part.layout->data_begin() + part.layout->tensors()[k].begin;
    }
    manifest_.written_bytes += part.plan.bytes;
}

Slice& SaveJob::slice_in_manifest(std::size_t tensor) {
    const auto [index, slice] = slice_of_[tensor];
    return manifest_.tensors[index].slices[slice];
}

}  // namespace penstock::store
