// SPDX-License-Identifier: Apache-2.0
// The extents of a transfer, read by index: a list, or rows of a table (base + id * stride), so
// that a million rows cost no object each. Immutable once made.
#pragma once

#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace penstock::engine {

/// A place in the extents: byte `skip` of extent `index`.
struct Position {
    std::uint64_t index = 0;
    std::uint64_t skip = 0;
    auto operator<=>(const Position&) const = default;
};

class Extents {
public:
    Extents() = default;
    explicit Extents(std::vector<Extent> list) : list_(std::move(list)), count_(list_.size()) {}
    explicit Extents(Rows rows)
        : rows_(std::move(rows)), count_(rows_.ids.size()), is_rows_(true) {}

    [[nodiscard]] std::uint64_t count() const { return count_; }
    [[nodiscard]] Extent operator[](std::uint64_t index) const {
        if (!is_rows_) {
            return list_[index];
        }
        const Memory& all = rows_.memory;
        return {rows_.base + rows_.ids[index] * rows_.stride_bytes,
                {all.data + index * rows_.row_bytes, rows_.row_bytes, all.kind, all.device},
                0};
    }

private:
    std::vector<Extent> list_;
    Rows rows_;
    std::uint64_t count_ = 0;  // a division by the size of an Extent else
    bool is_rows_ = false;
};

}  // namespace penstock::engine
