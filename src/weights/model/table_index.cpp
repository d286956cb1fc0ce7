// SPDX-License-Identifier: Apache-2.0
#include "weights/model/table_index.hpp"

#include "base/raise.hpp"
#include "base/text/near.hpp"

#include <penstock/tensor.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace penstock::weights {

namespace {

[[noreturn]] void refuse(const TensorTable& table, ErrorCode code, const std::string& message) {
    base::raise(base::error(code, "stream", message, table.path));
}

}  // namespace

TableIndex::TableIndex(const TensorTable& table) : table_(table) {
    entries_.reserve(table.tensors.size());
    for (const TensorEntry& entry : table.tensors) {
        add(entry);
    }
}

const TensorEntry& TableIndex::at(std::string_view user, const std::string& name) const {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
        std::vector<std::string_view> known;
        for (const TensorEntry& entry : table_.tensors) {
            known.push_back(entry.name);
        }
        const std::string_view near = base::nearest(name, known);
        refuse(table_, ErrorCode::kInvalidArgument,
               fmt::format("{} needs the tensor '{}', which none of the {} files has{}", user, name,
                           table_.files.size(),
                           near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
    }
    if (!found->second->strides.empty()) {
        refuse(table_, ErrorCode::kUnsupported,
               fmt::format("tensor '{}' was saved with strides; save it contiguous to stream it",
                           name));
    }
    return *found->second;
}

const TensorEntry& TableIndex::at(std::string_view user, const TensorPart& part) const {
    const TensorEntry& entry = at(user, part.tensor);
    if (part.bytes > entry.bytes || part.offset > entry.bytes - part.bytes) {
        refuse(table_, ErrorCode::kInvalidArgument,
               fmt::format("{} needs {} bytes from byte {} on of '{}', which has {}", user,
                           part.bytes, part.offset, part.tensor, entry.bytes));
    }
    return entry;
}

tier::StoredTensor stored_tensor(const TensorEntry& entry) {
    const auto type = element_type_named(entry.dtype);
    return tier::stored_tensor(entry.stretches, entry.bytes,
                               type ? std::max(bits_of(*type) / 8, 1U) : 1);
}

std::vector<TensorStretch> part_of(std::span<const TensorStretch> stretches, std::uint64_t offset,
                                   std::uint64_t bytes) {
    std::vector<TensorStretch> out;
    for (const TensorStretch& stretch : stretches) {
        if (offset < stretch.bytes && bytes != 0) {
            const std::uint64_t taken = std::min(bytes, stretch.bytes - offset);
            out.push_back({stretch.file, stretch.offset + offset, taken});
            bytes -= taken;
        }
        offset -= std::min(offset, stretch.bytes);
    }
    return out;
}

}  // namespace penstock::weights
