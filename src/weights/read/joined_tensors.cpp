// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "weights/model/table_index.hpp"

#include <penstock/tensor.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <utility>

namespace penstock {

namespace {

[[noreturn]] void refuse(const TensorTable& table, const std::string& message) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "stream", message, table.path));
}

TensorEntry joined_entry(const TensorTable& table, const weights::TableIndex& index,
                         const JoinedTensor& joined) {
    const std::string user = fmt::format("the joined tensor '{}'", joined.name);
    TensorEntry out;
    out.name = joined.name;
    out.shape = joined.shape;
    for (const TensorPart& part : joined.parts) {
        const TensorEntry& entry = index.at(user, part);
        if (!out.dtype.empty() && out.dtype != entry.dtype) {
            refuse(table, fmt::format("{}: its part '{}' is {}, and those before it are {}", user,
                                      part.tensor, entry.dtype, out.dtype));
        }
        out.dtype = entry.dtype;
        const auto bytes = weights::part_of(entry.stretches, part.offset, part.bytes);
        out.stretches.insert(out.stretches.end(), bytes.begin(), bytes.end());
        out.bytes += part.bytes;
    }
    const auto type = element_type_named(out.dtype);
    if (!type || bytes_of(*type, out.shape) != out.bytes) {
        refuse(table, fmt::format("{} has the shape [{}], and its {} parts have {} bytes{}{}", user,
                                  fmt::join(out.shape, ", "), joined.parts.size(), out.bytes,
                                  out.dtype.empty() ? "" : " of ", out.dtype));
    }
    return out;
}

}  // namespace

void join_tensors(TensorTable& table, std::span<const JoinedTensor> joined) {
    weights::TableIndex index(table);
    std::vector<TensorEntry> made;
    made.reserve(joined.size());  // the index refers to them
    for (const JoinedTensor& one : joined) {
        if (index.has(one.name)) {
            refuse(table, fmt::format("the joined tensor '{}': the table has this name already",
                                      one.name));
        }
        made.push_back(joined_entry(table, index, one));
        index.add(made.back());
    }
    table.tensors.insert(table.tensors.end(), std::make_move_iterator(made.begin()),
                         std::make_move_iterator(made.end()));
}

}  // namespace penstock
