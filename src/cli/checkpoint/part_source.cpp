// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/part_source.hpp"

#include "base/result.hpp"
#include "state/addresses.hpp"
#include "state/stored_rows.hpp"
#include "state/structure/structure.hpp"
#include "state/subtree.hpp"
#include "state/writing/state_image.hpp"

#include <penstock/memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace penstock::cli {

namespace {

state::Skeleton whole_of(const state::Source& source) {
    if (auto skeleton = state::skeleton_of(source)) {
        return std::move(*skeleton);
    }
    std::vector<state::StoredTensor> tensors;
    for (const TensorEntry& t : source.tensors()) {
        tensors.push_back({t.name, t.dtype, t.shape, t.bytes});
    }
    return state::skeleton_of("null", tensors);
}

state::Subtree part_of(const state::Source& source, const format::ValueTree& tree,
                       std::span<const std::string> names) {
    const std::vector<std::string_view> wanted(names.begin(), names.end());
    const auto refuse = [&source](const base::Error& error) {
        throw Error(ErrorCode::kInvalidArgument, 0, "convert", source.path(), kNoOffset,
                    fmt::format("{}: --names: {}", source.path(), error.message));
    };
    auto part = state::named_parts(tree, wanted, wanted.size() == 1);
    if (!part) {
        refuse(part.error());
    }
    if (*part) {
        return std::move(**part);
    }
    auto dict = state::dict_of_parts(tree, wanted);
    if (!dict) {
        refuse(dict.error());
    }
    return std::move(*dict);
}

}  // namespace

PartSource::PartSource(state::Source& whole, std::span<const std::string> names) : whole_(whole) {
    table_ = whole.table();
    table_.tensors.clear();
    const state::Skeleton skeleton = whole_of(whole);
    const state::Subtree part = part_of(whole, skeleton.tree, names);
    std::unordered_map<std::string_view, std::size_t> numbers;
    for (std::size_t i = 0; i < whole.tensors().size(); ++i) {
        numbers.emplace(whole.tensors()[i].name, i);
    }
    const state::Addresses addresses(whole.bytes());
    std::vector<std::span<const std::byte>> storages;
    std::vector<std::size_t> of_storage;
    const std::byte* at = addresses.begin();
    for (const std::uint32_t storage : part.storages) {
        of_storage.push_back(numbers.at(skeleton.sources[storage]));
        storages.emplace_back(at, whole.tensors()[of_storage.back()].bytes);
        at += storages.back().size();
    }
    State state = state::state_of(part.tree, storages);
    for (StateTensor& t : state.tensors) {
        const auto after =
            std::upper_bound(storages.begin(), storages.end(), t.data.data,
                             [](const std::byte* p, const auto& span) { return p < span.data(); });
        TensorEntry& entry = table_.tensors.emplace_back();
        Origin& place = places_.emplace_back();
        if (after != storages.begin() && t.data.bytes != 0) {
            const auto storage = static_cast<std::size_t>(after - storages.begin()) - 1;
            place = {of_storage[storage],
                     static_cast<std::uint64_t>(t.data.data - storages[storage].data())};
            entry = whole.tensors()[place.tensor];
        } else {
            entry.stretches.emplace_back();
        }
        if (entry.stretches.size() == 1) {  // slices have an order of their own
            entry.stretches.front().offset += place.first;
            entry.stretches.front().bytes = t.data.bytes;
        }
        entry.name = std::move(t.name);
        entry.dtype = std::move(t.dtype);
        entry.shape = std::move(t.shape);
        entry.bytes = t.data.bytes;
    }
    structure_ = std::move(state.structure);
}

void PartSource::read(std::size_t tensor, std::uint64_t begin, std::uint64_t /*end*/,
                      std::span<std::byte> into) {
    const TensorEntry& t = table_.tensors[tensor];
    const std::uint64_t row = t.shape.empty() || t.shape[0] == 0 ? 0 : t.bytes / t.shape[0];
    MemoryPool pool;
    Buffer all = pool.take(std::max<std::uint64_t>(t.bytes, 1));
    const state::TensorInto wanted{tensor, all.bytes().first(t.bytes)};
    read_tensors({&wanted, 1}, {}, {});
    std::memcpy(into.data(), all.bytes().data() + begin * row, into.size());
}

void PartSource::read_tensors(std::span<const state::TensorInto> wanted,
                              const stream::ReadFileOptions& options,
                              const penstock::Progress& progress) {
    std::vector<state::TensorInto> whole;
    std::vector<std::pair<std::size_t, Buffer>> larger;  // tensors of which a part is wanted
    MemoryPool pool;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        const Origin& place = places_[wanted[i].tensor];
        const std::uint64_t bytes = whole_.tensors()[place.tensor].bytes;
        if (wanted[i].into.empty()) {
            continue;
        }
        if (wanted[i].into.size() == bytes) {
            whole.push_back({place.tensor, wanted[i].into});
        } else {
            Buffer& memory = larger.emplace_back(i, pool.take(bytes)).second;
            whole.push_back({place.tensor, memory.bytes().first(bytes)});
        }
    }
    whole_.read_tensors(whole, options, progress);
    for (auto& [i, memory] : larger) {
        std::memcpy(wanted[i].into.data(), memory.bytes().data() + places_[wanted[i].tensor].first,
                    wanted[i].into.size());
    }
}

}  // namespace penstock::cli
