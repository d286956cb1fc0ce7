// SPDX-License-Identifier: Apache-2.0
#include "engine/extents.hpp"

#include "base/align.hpp"
#include "base/planted.hpp"
#include "base/radix_sort.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

namespace penstock::engine {

namespace {

// On the average. Larger ones are requests of their own in any order.
constexpr std::uint64_t kSortedBytesMax = 64 * base::kKiB;

// By file, and those of a file by their offset.
template <typename Item, typename File, typename Offset>
void sort_by_place(std::vector<Item>& items, const File& file, const Offset& offset) {
    base::radix_sort(std::span(items), file);
    for (auto begin = items.begin(); begin != items.end();) {
        const auto end = std::find_if(begin, items.end(),
                                      [&](const Item& item) { return file(item) != file(*begin); });
        base::radix_sort(std::span(begin, end), offset);
        begin = end;
    }
}

}  // namespace

void Extents::sort() {
    if (rows_ != nullptr) {
        sort_rows();
    } else {
        sort_list();
    }
}

void Extents::sort_list() {
    bool in_order = true;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < list_.size(); ++i) {
        const Extent& extent = list_[i];
        const Extent& before = list_[i == 0 ? 0 : i - 1];
        in_order = in_order &&
                   std::tie(before.file, before.offset) <= std::tie(extent.file, extent.offset);
        total += extent.memory.bytes;
    }
    if (in_order || total / list_.size() > kSortedBytesMax) {
        return;
    }
    std::vector<std::uint64_t> order(list_.size());
    std::iota(order.begin(), order.end(), std::uint64_t{0});
    sort_by_place(
        order, [&](std::uint64_t i) { return std::uint64_t{list_[i].file}; },
        [&](std::uint64_t i) { return list_[i].offset; });
    std::vector<Extent> list;
    list.reserve(order.size());
    for (const std::uint64_t i : order) {
        list.push_back(list_[i]);
    }
    list_ = base::ShortVector<Extent>(std::move(list));
    listed_ = std::move(order);
    sorted_ = true;
}

void Extents::sort_rows() {
    std::vector<RowList::Row>& rows = rows_->rows;
    const auto file = [&](const RowList::Row& row) {
        return std::uint64_t{rows_->tables[row.table].file};
    };
    const auto before = [&](const RowList::Row& a, const RowList::Row& b) {
        return std::pair(file(a), a.offset) < std::pair(file(b), b.offset);
    };
    if (std::is_sorted(rows.begin(), rows.end(), before)) {
        return;
    }
    sort_by_place(rows, file, [](const RowList::Row& row) { return row.offset; });
    sorted_ = true;
}

std::string Extents::name_of(std::uint64_t index) const {
    if (rows_ == nullptr) {
        return {};
    }
    const RowList::Row& row = rows_->rows[index];
    const RowTable& table = rows_->tables[row.table];
    const std::string of =
        rows_->tables.size() == 1 ? std::string() : fmt::format(" of table {}", row.table);
    return fmt::format("row {}{}", (row.offset - table.base) / table.stride_bytes, of);
}

namespace {

// Finds the table and the offset of each row.
class RowFinder {
public:
    RowFinder(const Rows& rows, const char* verb) : rows_(rows), verb_(verb), tables_(rows.tables) {
        std::uint64_t first = 0;
        for (RowTable& table : tables_) {
            table.stride_bytes = table.stride_bytes == 0 ? table.row_bytes : table.stride_bytes;
            longest_ = std::max(longest_, table.row_bytes);
            first_.push_back(first);
            first = base::checked_add(first, table.rows).value_or(UINT64_MAX);
        }
    }

    base::Result<RowList> find() {
        PENSTOCK_CHECK(check_counts());
        RowList list;
        list.memory = rows_.memory;
        list.memory_stride_bytes =
            rows_.memory_stride_bytes == 0 ? longest_ : rows_.memory_stride_bytes;
        list.destinations.assign(rows_.destinations.begin(), rows_.destinations.end());
        list.rows.reserve(rows_.ids.size());
        for (std::size_t i = 0; i < rows_.ids.size(); ++i) {
            PENSTOCK_TRY(row, find_row(static_cast<std::uint32_t>(i)));
            list.rows.push_back(row);
        }
        PENSTOCK_CHECK(check_places(list));
        list.tables = std::move(tables_);
        return list;
    }

private:
    [[nodiscard]] base::Failure wrong(const std::string& message) const {
        return base::fail(base::error(ErrorCode::kInvalidArgument, verb_, message));
    }

    base::Result<void> check_counts() const {
        const std::size_t count = rows_.ids.size();
        if (count >= UINT32_MAX) {
            return wrong(fmt::format("{} rows came, and a transfer takes {}; make several", count,
                                     UINT32_MAX - 1));
        }
        for (const std::size_t other : {rows_.table_of.size(), rows_.destinations.size()}) {
            if (other != 0 && other != count) {
                return wrong(fmt::format(
                    "{} ids came, and {} {}; give one for each id, or none", count, other,
                    other == rows_.table_of.size() ? "numbers of tables" : "destinations"));
            }
        }
        for (std::size_t i = 0; i + 1 < tables_.size() && rows_.table_of.empty(); ++i) {
            if (tables_[i].rows == UINT64_MAX) {
                return wrong(fmt::format(
                    "table {} does not say how many rows it has, so ids cannot be counted past it; "
                    "give its number of rows, or the table of each id",
                    i));
            }
        }
        return {};
    }

    [[nodiscard]] base::Result<RowList::Row> find_row(std::uint32_t index) const {
        std::uint64_t id = rows_.ids[index];
        std::size_t table = 0;
        if (!rows_.table_of.empty()) {
            table = rows_.table_of[index];
        } else if (tables_.size() > 1) {
            table = static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), id) -
                                             first_.begin() - 1);
            id -= first_[table];
            id -= table != 0 && id != 0 && base::planted("row_before") ? 1 : 0;
        }
        if (table >= tables_.size()) {
            return wrong(fmt::format("ids[{}] is of table {}, and there are {} tables", index,
                                     table, tables_.size()));
        }
        const RowTable& its = tables_[table];
        if (id >= its.rows) {
            return wrong(
                fmt::format("ids[{}] is row {} of a table of {} rows (table {}); give 0 "
                            "to {}",
                            index, id, its.rows, table, its.rows - 1));
        }
        std::uint64_t offset = 0;
        if (__builtin_mul_overflow(id, its.stride_bytes, &offset) ||
            __builtin_add_overflow(offset, its.base, &offset)) {
            return wrong(
                fmt::format("ids[{}] is row {} of a table from byte {} on, with {} bytes "
                            "from row to row: past the largest offset there is",
                            index, id, its.base, its.stride_bytes));
        }
        return RowList::Row{offset, index, static_cast<std::uint32_t>(table)};
    }

    [[nodiscard]] base::Result<void> check_places(const RowList& list) const {
        const std::uint64_t stride = list.memory_stride_bytes;
        if (stride < longest_) {
            return wrong(fmt::format(
                "rows of {} bytes came for {} bytes of memory from one to the next; give at least "
                "as many",
                longest_, stride));
        }
        const std::uint64_t places = rows_.memory.bytes < longest_ || stride == 0
                                         ? (longest_ == 0 ? UINT64_MAX : 0)
                                         : (rows_.memory.bytes - longest_) / stride + 1;
        for (std::size_t i = 0; i < list.rows.size(); ++i) {
            const std::uint64_t place = list.destinations.empty() ? i : list.destinations[i];
            if (place >= places) {
                return wrong(
                    fmt::format("ids[{}] goes to place {}, and the memory of {} bytes has "
                                "{} of {} bytes; give memory for all rows, or other places",
                                i, place, rows_.memory.bytes, places, stride));
            }
        }
        return {};
    }

    const Rows& rows_;
    const char* verb_;
    std::vector<RowTable> tables_;
    std::vector<std::uint64_t> first_;  ///< number of each table's first row, through all of them
    std::uint64_t longest_ = 0;
};

}  // namespace

base::Result<Extents> extents_of(const Rows& rows, const char* verb) {
    PENSTOCK_TRY(list, RowFinder(rows, verb).find());
    return Extents(std::move(list));
}

}  // namespace penstock::engine
