// SPDX-License-Identifier: Apache-2.0
#include "state/stored_rows.hpp"

#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/torch_types.hpp"
#include "state/state_views.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace penstock::state {

namespace {

TensorEntry seen_as(const format::TensorValue& t, const TensorEntry& stored, std::string name) {
    TensorEntry out = stored;
    out.name = name.empty() ? stored.name : std::move(name);
    out.dtype = tensor::row_of(t.type).name;
    out.shape = t.shape;
    if (t.type == tensor::ElementType::kF4E2M1 && !out.shape.empty()) {
        out.shape.back() *= 2;  // torch counts pairs
    }
    out.bytes = view_bytes(t);
    out.strides = is_plain(t) ? std::vector<std::uint64_t>() : t.strides;
    TensorStretch& place = out.stretches[0];
    place.offset += t.offset * format::torch_type(t.type)->torch_bytes();
    place.bytes = out.bytes;
    return out;
}

bool is_all_of(const StoredRow& row, const TensorEntry& stored) {
    return row.tensor.strides.empty() && row.tensor.dtype == stored.dtype &&
           row.tensor.shape == stored.shape &&
           row.tensor.stretches[0].offset == stored.stretches[0].offset;
}

}  // namespace

std::optional<Skeleton> skeleton_of(const Source& source) {
    if (source.structure() == "null") {
        return std::nullopt;
    }
    std::vector<CheckpointTensor> tensors;
    for (const TensorEntry& t : source.tensors()) {
        tensors.push_back({t.name, t.dtype, t.shape, t.bytes, 0});
    }
    try {
        return skeleton_of(source.structure(), tensors);
    } catch (const Error&) {  // JSON of another program
        return std::nullopt;
    }
}

std::vector<StoredRow> rows_of(const Source& source, const std::optional<Skeleton>& skeleton) {
    std::vector<StoredRow> rows;
    std::unordered_map<std::string_view, std::string> first;  // row of each stored tensor
    if (skeleton) {
        std::unordered_map<std::string_view, const TensorEntry*> stored;
        for (const TensorEntry& t : source.tensors()) {
            stored.emplace(t.name, &t);
        }
        for (StateView& view : views_of(skeleton->tree)) {
            const format::TensorValue& t = skeleton->tree.tensors[view.tensor];
            const TensorEntry& behind = *stored.at(skeleton->sources[t.storage]);
            StoredRow& row = rows.emplace_back();
            row.tensor = seen_as(t, behind, std::move(view.name));
            row.stored_as = behind.name;
            row.index = static_cast<std::size_t>(&behind - source.tensors().data());
            if (!is_all_of(row, behind)) {
                row.view = t;
            }
            const auto [known, fresh] = first.try_emplace(behind.name, row.tensor.name);
            row.shared_with = fresh ? "" : known->second;
        }
    }
    for (const TensorEntry& t : source.tensors()) {
        if (!first.contains(t.name)) {
            rows.push_back({t, t.name, {}, static_cast<std::size_t>(&t - source.tensors().data())});
        }
    }
    return rows;
}

void check_view(const Source& source, const StoredRow& row) {
    const TensorEntry& stored = source.tensors()[row.index];
    if (row.tensor.strides.empty()) {
        return;
    }
    if (const std::string why = why_not_gathered(*row.view, stored.bytes); !why.empty()) {
        base::raise(base::error(
            ErrorCode::kUnsupported, "read",
            fmt::format("tensor {} {}; read {}, which has its bytes",
                        format::shown(row.tensor.name), why, format::shown(stored.name)),
            source.path()));
    }
}

void read_view(Source& source, const StoredRow& row, std::span<std::byte> into, MemoryPool& pool,
               const stream::ReadFileOptions& options, const Progress& progress) {
    const std::uint64_t bytes = source.tensors()[row.index].bytes;
    const Buffer stored = pool.take(std::max<std::uint64_t>(bytes, 1));
    const TensorInto all{row.index, stored.bytes().first(bytes)};
    source.read_tensors({&all, 1}, options, progress);
    if (row.tensor.strides.empty()) {  // of any type, also one that safetensors does not have
        const std::uint64_t first =
            row.tensor.stretches[0].offset - source.tensors()[row.index].stretches[0].offset;
        std::copy_n(all.into.data() + first, into.size(), into.data());
        return;
    }
    gather(*row.view, all.into, into);
}

}  // namespace penstock::state
