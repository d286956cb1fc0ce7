// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/views.hpp"

#include "format/safetensors.hpp"
#include "format/torch_types.hpp"
#include "state/state_views.hpp"

#include <string_view>
#include <unordered_map>
#include <utility>

namespace penstock::cli {

namespace {

SourceTensor seen_as(const format::TensorValue& t, const SourceTensor& stored, std::string name) {
    SourceTensor out = stored;
    out.name = name.empty() ? stored.name : std::move(name);
    const std::string_view type = format::safetensors::name_of(t.type);
    out.dtype = type.empty() ? format::torch_type(t.type)->dtype : type;
    out.shape = t.shape;
    if (t.type == tensor::ElementType::kF4E2M1 && !out.shape.empty()) {
        out.shape.back() *= 2;  // torch counts pairs
    }
    out.bytes = state::view_bytes(t);
    out.offset += t.offset * format::torch_type(t.type)->bytes;
    return out;
}

bool is_all_of(const ViewRow& row, const SourceTensor& stored) {
    return row.strides.empty() && row.tensor.dtype == stored.dtype &&
           row.tensor.shape == stored.shape && row.tensor.offset == stored.offset;
}

}  // namespace

std::optional<state::Skeleton> skeleton_of(const CheckpointSource& source) {
    if (source.structure() == "null") {
        return std::nullopt;
    }
    std::vector<CheckpointTensor> tensors;
    for (const SourceTensor& t : source.tensors()) {
        tensors.push_back({t.name, t.dtype, t.shape, t.bytes, 0});
    }
    try {
        return state::skeleton_of(source.structure(), tensors);
    } catch (const Error&) {  // JSON of somebody else
        return std::nullopt;
    }
}

std::vector<ViewRow> rows_of(const CheckpointSource& source,
                             const std::optional<state::Skeleton>& skeleton) {
    std::vector<ViewRow> rows;
    std::unordered_map<std::string_view, std::string> first;  // row of each that is stored
    if (skeleton) {
        std::unordered_map<std::string_view, const SourceTensor*> stored;
        for (const SourceTensor& t : source.tensors()) {
            stored.emplace(t.name, &t);
        }
        for (state::StateView& view : state::views_of(skeleton->tree)) {
            const format::TensorValue& t = skeleton->tree.tensors[view.tensor];
            const SourceTensor& behind = *stored.at(skeleton->sources[t.storage]);
            ViewRow& row = rows.emplace_back();
            row.tensor = seen_as(t, behind, std::move(view.name));
            row.stored_as = behind.name;
            row.strides = state::is_plain(t) ? std::vector<std::uint64_t>() : t.strides;
            row.index = static_cast<std::size_t>(&behind - source.tensors().data());
            if (!is_all_of(row, behind)) {
                row.view = t;
            }
            const auto [known, fresh] = first.try_emplace(behind.name, row.tensor.name);
            row.shared_with = fresh ? "" : known->second;
        }
    }
    for (const SourceTensor& t : source.tensors()) {
        if (!first.contains(t.name)) {
            rows.push_back(
                {t, t.name, {}, {}, static_cast<std::size_t>(&t - source.tensors().data())});
        }
    }
    return rows;
}

}  // namespace penstock::cli
