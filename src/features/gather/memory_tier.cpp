// SPDX-License-Identifier: Apache-2.0
#include "features/gather/memory_tier.hpp"

#include "base/align.hpp"
#include "base/text/units.hpp"
#include "stream/copy_threads.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace penstock::features {

namespace {

constexpr std::uint64_t kMetadataBytes = 32;  // of a slot in the cache's tables, at most
constexpr std::size_t kAheadBytes = 8192;     // of rows whose memory is asked for before their copy
// A gather of so many bytes is past the caches when its last row comes.
constexpr std::uint64_t kStreamedBytes = 8 << 20;

// Slots of a table whose share of the memory is `bytes`.
std::uint32_t slots_for(const Table& table, std::uint64_t bytes) {
    const std::uint64_t fit = bytes / (table.row_bytes + kMetadataBytes);
    return static_cast<std::uint32_t>(
        std::min({slots_for_all(table.rows), fit, static_cast<std::uint64_t>(kSlotsMax)}));
}

// A program may open the store in so many workers.
constexpr std::uint64_t kSmallPart = 16;

// Bytes that all rows take, with the tables of their slots.
std::uint64_t bytes_for_all(const Directory& directory) {
    std::uint64_t total = 0;
    for (const Table& table : directory.tables) {
        const auto bytes =
            base::checked_multiply(slots_for_all(table.rows), table.row_bytes + kMetadataBytes);
        total = base::checked_add(total, bytes.value_or(UINT64_MAX)).value_or(UINT64_MAX);
    }
    return total;
}

MemoryChoice none_stay(const std::string& why, bool is_default) {
    return {0, is_default,
            fmt::format("no row stays in memory: {}. Each gather reads its rows again", why)};
}

}  // namespace

std::vector<std::uint32_t> share_slots(const Directory& directory, std::uint64_t bytes) {
    std::vector<std::uint32_t> counts(directory.tables.size());
    std::vector<std::uint32_t> order(counts.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto size_of = [&directory](std::uint32_t table) {
        return directory.tables[table].rows * directory.tables[table].row_bytes;
    };
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t a, std::uint32_t b) { return size_of(a) < size_of(b); });
    double left = 0;
    for (const std::uint32_t table : order) {
        left += static_cast<double>(size_of(table));
    }
    // From the smallest on: what a table does not need, the larger ones have.
    for (const std::uint32_t number : order) {
        const Table& table = directory.tables[number];
        const double size = static_cast<double>(size_of(number));
        const double share = left > 0 ? static_cast<double>(bytes) * (size / left) : 0;
        counts[number] = slots_for(
            table, share >= static_cast<double>(bytes) ? bytes : static_cast<std::uint64_t>(share));
        left -= size;
        bytes -= counts[number] * (table.row_bytes + kMetadataBytes);
    }
    return counts;
}

MemoryChoice choose_memory(const FeatureStoreOptions& options, const Directory& directory,
                           bool is_npy, std::uint64_t left_bytes) {
    if (options.ram_bytes == 0) {
        return none_stay("none was asked to (ram=None, ram_bytes 0)", false);
    }
    if (options.ram_bytes != FeatureStoreOptions::kRamIfSmall) {
        return {options.ram_bytes, false,
                fmt::format("rows stay in up to {} of memory of this process, as ram says",
                            base::format_bytes(options.ram_bytes))};
    }
    if (!options.hot.empty() || options.device_bytes != 0) {
        return none_stay("with hot rows or memory of a GPU, ram has to be given", true);
    }
    if (is_npy) {
        return none_stay("those of a .npy may change in place; give ram='auto' if they do not",
                         true);
    }
    const std::uint64_t all = bytes_for_all(directory);
    const std::string sizes =
        fmt::format("{} of {}", base::format_bytes(all), base::format_bytes(left_bytes));
    if (all > left_bytes / kSmallPart) {
        return none_stay(
            fmt::format("all of them would take more than a sixteenth of the free memory ({}); "
                        "ram='auto' or a size keeps some",
                        sizes),
            true);
    }
    return {all, true,
            fmt::format("rows stay in memory of this process, and all come there in time, as they "
                        "take at most a sixteenth of the free memory ({})",
                        sizes)};
}

MemoryTier::MemoryTier(const Directory& directory, std::uint64_t bytes, RowPolicy policy)
    : slots_(directory.tables.size()),
      next_(std::make_unique<std::atomic<std::uint64_t>[]>(directory.tables.size())) {
    for (const Table& table : directory.tables) {
        rows_.push_back(table.rows);
    }
    const std::vector<std::uint32_t> counts = share_slots(directory, bytes);
    MemoryPool pool({.touch = false, .keep_on_fork = false});
    for (std::size_t number = 0; number < slots_.size(); ++number) {
        Slots& slots = slots_[number];
        slots.row_bytes = directory.tables[number].row_bytes;
        if (counts[number] == 0) {
            continue;
        }
        slots.memory = pool.take(counts[number] * slots.row_bytes);
        slots.cache = std::make_unique<KeyCache>(counts[number], policy);
        keeps_rows_ = true;
    }
}

void add_cache_stats(const KeyCache& cache, FeatureStats& stats) {
    const KeyCacheStats its = cache.stats();
    stats.slots += cache.slots();
    stats.admitted += its.admitted;
    stats.passed_by += its.passed_by;
    stats.evicted += its.evicted;
    stats.preloaded += its.preloaded;
    stats.hints += its.hints;
    stats.hints_used += its.hints_used;
    stats.hints_refused += its.hints_refused;
    stats.hints_dropped += its.hints_dropped;
}

RowRange MemoryTier::take_next(std::uint32_t table, std::uint64_t count) noexcept {
    std::atomic<std::uint64_t>& next = next_[table];
    std::uint64_t begin = next.load(std::memory_order_relaxed);
    std::uint64_t end = 0;
    do {
        end = begin + std::min(count, rows_[table] - begin);
    } while (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed));
    return {begin, end};
}

void MemoryTier::add_stats(FeatureStats& stats) const {
    for (const Slots& slots : slots_) {
        if (slots.cache != nullptr) {
            stats.memory_bytes += slots.memory.size() + slots.cache->metadata_bytes();
            add_cache_stats(*slots.cache, stats);
        }
    }
}

TierGather::TierGather(std::shared_ptr<MemoryTier> tier, const FeatureRequest& request,
                       std::weak_ptr<const void> reading)
    : tier_(std::move(tier)),
      table_(request.table),
      slots_(tier_->of(request.table)),
      out_(request.out),
      process_(::getpid()) {
    // A copy: the ids may lie in the memory that rows are copied to, or change meanwhile.
    const std::vector<std::uint64_t> wanted(request.ids.begin(), request.ids.end());
    const std::size_t count = wanted.size();
    std::vector<KeyPlace> places(count);
    for (auto* const list : {&ids_, &destinations_, &admitted_rows_}) {
        list->reserve(count);
    }
    admitted_.reserve(count);
    FilledMemory::List filled;
    filled.push_back({out_.data, out_.data + out_.bytes, std::move(reading)});
    // Nothing throws from here on.
    its_ = tier_->filled_.add(filled);
    slots_.cache->lookup(wanted, places);
    copy_hits(places);
    for (std::size_t i = 0; i < count; ++i) {
        KeyPlace& place = places[i];
        if (place.state == KeyState::kHit) {
            continue;
        }
        ids_.push_back(wanted[i]);
        destinations_.push_back(i);
        if (place.state == KeyState::kRead && place.slot != kNoSlot) {
            admitted_.push_back(place);
            admitted_rows_.push_back(i);
            place.slot = kNoSlot;  // is let go of later than the others
        }
    }
    hits_ = count - ids_.size();
    slots_.cache->release(places);
}

// In one pass, while the memory of the next ones is on its way.
void TierGather::copy_hits(std::span<const KeyPlace> places) const noexcept {
    const std::uint64_t bytes = slots_.row_bytes;
    const bool streamed = places.size() * bytes >= kStreamedBytes;
    std::size_t ahead = 0;
    const auto next_hit = [&]() -> const std::byte* {
        while (ahead < places.size() && places[ahead].state != KeyState::kHit) {
            ++ahead;
        }
        return ahead < places.size() ? slots_.row(places[ahead++].slot) : nullptr;
    };
    for (std::uint64_t asked = 0; asked < kAheadBytes; asked += bytes) {
        __builtin_prefetch(next_hit());
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
        if (places[i].state != KeyState::kHit) {
            continue;
        }
        const std::byte* const next = next_hit();
        if (streamed) {
            stream::stream_piece(out_.data + i * bytes, slots_.row(places[i].slot), bytes, next);
        } else {
            __builtin_prefetch(next);
            std::memcpy(out_.data + i * bytes, slots_.row(places[i].slot), bytes);
        }
    }
    stream::finish_streaming();
}

TierGather::~TierGather() {
    if (process_ != ::getpid()) {
        return;  // the parent's, whose memory this process does not have
    }
    slots_.cache->release(admitted_);
    tier_->filled_.remove(its_, finished_);
}

void TierGather::finish(bool sound) noexcept {
    finished_ = true;
    if (process_ != ::getpid() || !sound) {
        return;
    }
    for (std::size_t i = 0; i < admitted_.size(); ++i) {
        std::memcpy(slots_.row(admitted_[i].slot), out_.data + admitted_rows_[i] * slots_.row_bytes,
                    slots_.row_bytes);
    }
    // After the copy: another gather may have begun to fill the same memory meanwhile. It says so
    // before it writes.
    if (!tier_->filled_.overlaps(its_)) {
        slots_.cache->commit(admitted_);
    }
}

}  // namespace penstock::features
