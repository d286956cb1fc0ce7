// SPDX-License-Identifier: Apache-2.0
#include "features/gather/hinted_rows.hpp"

#include "features/gather/row_hash.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace penstock::features {

namespace {

// Batches may be gathered out of order by so many, as threads of a loader do.
constexpr std::uint64_t kLate = 8;
constexpr std::size_t kSamples = 64;
constexpr std::size_t kRowsMin = 1024;

}  // namespace

std::size_t HintedRows::place_of(const std::vector<Row>& rows, std::uint64_t id) const {
    const std::size_t last = rows.size() - 1;
    std::size_t place = row_hash(id) & last;
    while (rows[place].is_row && rows[place].id != id) {
        place = (place + 1) & last;
    }
    return place;
}

std::size_t HintedRows::size_for(std::size_t rows) const {
    return std::bit_ceil(std::max(kRowsMin, rows + rows / 2));
}

// The table without the rows of batches that are over, with room for so many more. False: it would
// be too large.
bool HintedRows::make_room(std::size_t rows, std::uint64_t bytes_max) {
    if (!rows_.empty() && (used_ + rows) * 4 <= rows_.size() * 3) {
        return true;
    }
    if (rows > bytes_max / sizeof(Row)) {
        return false;
    }
    const auto is_live = [this](const Row& row) { return row.is_row && (row.mask & live_) != 0; };
    const auto live = static_cast<std::size_t>(std::count_if(rows_.begin(), rows_.end(), is_live));
    const std::size_t size = size_for(live + rows);
    if (size > kRowsMin && size > bytes_max / sizeof(Row)) {
        return false;
    }
    std::vector<Row> made(size);
    for (const Row& row : rows_) {
        if (is_live(row)) {
            made[place_of(made, row.id)] = {row.id, row.mask & live_, true};
        }
    }
    rows_ = std::move(made);
    used_ = live;
    return true;
}

std::uint64_t HintedRows::take(std::span<const std::uint64_t> ids, std::span<std::uint32_t> masks,
                               std::uint64_t bytes_max) {
    if (!make_room(ids.size(), bytes_max)) {
        return 0;
    }
    const std::uint32_t bit = bit_of(next_);
    if ((live_ & bit) != 0) {  // 32 batches before this one, and never gathered
        end(next_ - 32);
    }
    if ((stale_ & bit) != 0) {
        for (Row& row : rows_) {
            row.mask &= live_;
        }
        for (std::uint32_t& mask : masks) {
            mask &= live_;
        }
        stale_ = 0;
    }
    for (const std::uint64_t id : ids) {
        Row& row = rows_[place_of(rows_, id)];
        if (!row.is_row) {
            row = {id, 0, true};
            ++used_;
        }
        row.mask |= bit;
    }
    live_ |= bit;
    return next_++;
}

std::uint32_t HintedRows::mask_of(std::uint64_t id) const {
    if (live_ == 0) {
        return 0;
    }
    return rows_[place_of(rows_, id)].mask;
}

std::uint32_t HintedRows::distance(std::uint32_t mask) const {
    const std::uint32_t live = mask & live_;
    return live == 0 ? kNever
                     : static_cast<std::uint32_t>(
                           std::countr_zero(std::rotr(live, static_cast<int>(first_ % 32))));
}

bool HintedRows::is_outstanding(std::uint64_t number) const {
    return number >= first_ && number < next_ && (live_ & bit_of(number)) != 0;
}

std::uint32_t HintedRows::outstanding() const {
    return static_cast<std::uint32_t>(std::popcount(live_));
}

std::uint64_t HintedRows::like(std::span<const std::uint64_t> ids) const {
    if (live_ == 0 || ids.empty()) {
        return 0;
    }
    const std::size_t samples = std::min(ids.size(), kSamples);
    std::array<std::size_t, 32> votes{};
    for (std::size_t i = 0; i < samples; ++i) {
        std::uint32_t mask = mask_of(ids[i * ids.size() / samples]) & live_;
        for (; mask != 0; mask &= mask - 1) {
            ++votes[static_cast<std::size_t>(std::countr_zero(mask))];
        }
    }
    std::uint64_t best = 0;
    std::size_t votes_of_best = 0;
    for (std::uint64_t number = first_; number < next_; ++number) {
        if (is_outstanding(number) && votes[number % 32] > votes_of_best) {
            best = number;
            votes_of_best = votes[number % 32];
        }
    }
    return votes_of_best * 4 >= samples * 3 ? best : 0;
}

void HintedRows::end(std::uint64_t number) {
    live_ &= ~bit_of(number);
    stale_ |= bit_of(number);
    while (first_ < next_ && !is_outstanding(first_)) {
        ++first_;
    }
}

std::uint32_t HintedRows::use(std::uint64_t number) {
    std::uint32_t given_up = 0;
    while (first_ + kLate < number) {
        end(first_);
        ++given_up;
    }
    end(number);
    return given_up;
}

std::uint32_t HintedRows::drop() {
    const std::uint32_t given_up = outstanding();
    stale_ |= live_;
    live_ = 0;
    first_ = next_;
    rows_ = std::vector<Row>();  // its memory goes, too
    used_ = 0;
    return given_up;
}

std::uint64_t HintedRows::bytes() const {
    return rows_.size() * sizeof(Row);
}

}  // namespace penstock::features
