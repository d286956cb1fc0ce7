// SPDX-License-Identifier: Apache-2.0
// The extents of a transfer, read by index: a list, or rows of tables, of which each costs 16
// bytes. Immutable once a transfer has them.
#pragma once

#include "base/result.hpp"
#include "base/short_vector.hpp"

#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::engine {

/// In a file, the kernel's (loff_t).
inline constexpr std::uint64_t kOffsetMax = INT64_MAX;

/// Whose memory it is, and of which device.
struct MemoryPlace {
    MemoryKind kind = MemoryKind::kHost;
    std::int32_t device = 0;
    bool operator==(const MemoryPlace&) const = default;
};
[[nodiscard]] inline MemoryPlace place_of(const Memory& memory) {
    return memory.kind == MemoryKind::kHost ? MemoryPlace{}
                                            : MemoryPlace{memory.kind, memory.device};
}

/// A place in the extents: byte `skip` of extent `index`.
struct Position {
    std::uint64_t index = 0;
    std::uint64_t skip = 0;
    auto operator<=>(const Position&) const = default;
};

/// Rows as they were checked: see extents_of().
struct RowList {
    struct Row {
        std::uint64_t offset = 0;
        std::uint32_t index = 0;  ///< among those that were asked for
        std::uint32_t table = 0;
    };
    std::vector<Row> rows;
    std::vector<RowTable> tables;
    std::vector<std::uint64_t> destinations;
    Memory memory;
    std::uint64_t memory_stride_bytes = 0;

    [[nodiscard]] Extent operator[](std::uint64_t index) const {
        const Row& row = rows[index];
        const RowTable& table = tables[row.table];
        const std::uint64_t place = destinations.empty() ? row.index : destinations[row.index];
        return {row.offset,
                {memory.data + place * memory_stride_bytes, table.row_bytes, memory.kind,
                 memory.device},
                table.file};
    }
};

class Extents {
public:
    Extents() = default;
    explicit Extents(std::vector<Extent> list) : list_(std::move(list)), count_(list_.size()) {}
    /// Allocates nothing.
    [[nodiscard]] static Extents of_one(const Extent& extent) {
        Extents made;
        made.list_.push_back(extent);
        made.count_ = 1;
        return made;
    }
    explicit Extents(RowList rows)
        : rows_(std::make_unique<RowList>(std::move(rows))), count_(rows_->rows.size()) {}

    [[nodiscard]] std::uint64_t count() const { return count_; }
    [[nodiscard]] Extent operator[](std::uint64_t index) const {
        return rows_ == nullptr ? list_[index] : (*rows_)[index];
    }
    /// use(extent): what every request asks of a list is not copied first.
    template <typename Use>
    [[nodiscard]] auto with(std::uint64_t index, const Use& use) const {
        return rows_ == nullptr ? use(list_[index]) : use((*rows_)[index]);
    }
    /// "row 17 of table 2", for messages; "" for one of a list.
    [[nodiscard]] std::string name_of(std::uint64_t index) const;

    /// For a read: brings many small ones into the order of the files, so that those that lie near
    /// one another there do so here. Others, and those that are in order, stay as they are.
    void sort();
    /// Which of those that were asked for number `index` is.
    [[nodiscard]] std::uint64_t listed(std::uint64_t index) const {
        if (rows_ != nullptr) {
            return rows_->rows[index].index;
        }
        return sorted_ ? listed_[index] : index;
    }
    [[nodiscard]] bool sorted() const { return sorted_; }

private:
    base::ShortVector<Extent> list_;
    std::vector<std::uint64_t> listed_;  ///< of a list that was sorted
    std::unique_ptr<RowList> rows_;      ///< instead of a list; apart, for most have a list
    std::uint64_t count_ = 0;            // a division by the size of an Extent else
    bool sorted_ = false;

    void sort_list();
    void sort_rows();
};

/// kInvalidArgument that names the row where `rows` ask for what is not there, or have no place for
/// it. `verb`: "read" or "write".
[[nodiscard]] base::Result<Extents> extents_of(const Rows& rows, const char* verb);

}  // namespace penstock::engine
