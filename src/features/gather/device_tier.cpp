// SPDX-License-Identifier: Apache-2.0
#include "features/gather/device_tier.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace penstock::features {

namespace {

constexpr std::size_t kIdleLaunches = 4;
constexpr std::uint64_t kPiecesLeast = 4096;
// A GPU that takes longer does not answer any more.
constexpr std::chrono::seconds kPatience(10);
constexpr long kLookAgain = 20'000;  // nanoseconds

std::uint64_t address_of(const std::byte* memory) {
    return reinterpret_cast<std::uintptr_t>(memory);
}

}  // namespace

PinnedRows::PinnedRows(std::shared_ptr<MemoryTier> tier, std::size_t tables, std::int32_t device)
    : tier_(std::move(tier)), ranges_(tables) {
    for (std::uint32_t table = 0; table < tables; ++table) {
        if (tier_->of(table).cache != nullptr) {
            ranges_[table] = PinnedMemory(tier_->of(table).memory.bytes(), device, true);
        }
    }
}

DeviceTier::DeviceTier(const Directory& directory, std::int32_t device, std::uint64_t bytes,
                       RowPolicy policy, std::shared_ptr<PinnedRows> pinned)
    : process_(::getpid()),
      device_(device),
      pinned_(std::move(pinned)),
      slots_(directory.tables.size()) {
    const std::vector<std::uint32_t> counts = share_slots(directory, bytes);
    for (std::size_t table = 0; table < slots_.size(); ++table) {
        Slots& slots = slots_[table];
        slots.row_bytes = directory.tables[table].row_bytes;
        if (counts[table] != 0) {
            slots.memory = Region::gpu(counts[table] * slots.row_bytes, device);
            slots.cache = std::make_unique<KeyCache>(counts[table], policy);
        }
    }
    // A kernel that cannot be loaded is an error of the opening.
    idle_.emplace_back(device, kPiecesLeast);
}

DeviceTier::~DeviceTier() {
    if (process_ != ::getpid()) {
        return;  // the parent's: a GPU does not work here
    }
    for (Flight& flight : flights_) {
        static_cast<void>(flight.launch.wait(kPatience));
    }
    reap_locked();
}

void DeviceTier::add_stats(FeatureStats& stats) const {
    for (const Slots& slots : slots_) {
        if (slots.cache != nullptr) {
            stats.device_bytes += slots.memory.size();
            add_cache_stats(*slots.cache, stats);
        }
    }
}

void DeviceTier::reap() noexcept {
    const std::lock_guard lock(mutex_);
    reap_locked();
}

void DeviceTier::reap_locked() noexcept {
    for (auto flight = flights_.begin(); flight != flights_.end();) {
        const auto state = flight->launch.state();
        if (state == RowCopies::State::kRunning) {
            ++flight;
            continue;
        }
        const bool done = state == RowCopies::State::kDone;
        for (const Used& used : flight->used) {
            if (used.filled && done) {
                used.cache->commit(used.places);
            }
            used.cache->release(used.places);
        }
        if (!done) {
            flight->outcome->error = flight->launch.error();
        }
        flight->outcome->over = true;
        if (done && idle_.size() < kIdleLaunches) {  // the vector has room for so many
            flight->launch.reset();
            idle_.push_back(std::move(flight->launch));
        }
        flight = flights_.erase(flight);
    }
}

std::shared_ptr<Outcome> DeviceTier::launch(std::span<const Row> rows, std::vector<Used>& used,
                                            const StreamHandle& stream) {
    std::uint64_t pieces = 0;
    for (const Row& row : rows) {
        pieces += RowCopies::pieces(1, row.bytes);
    }
    std::list<Flight> made(1);
    Flight& flight = made.front();
    flight.outcome = std::make_shared<Outcome>();
    const std::lock_guard lock(mutex_);
    idle_.reserve(kIdleLaunches);
    reap_locked();
    const auto fits = std::find_if(idle_.begin(), idle_.end(), [pieces](const auto& launch) {
        return launch.room() >= pieces;
    });
    if (fits != idle_.end()) {
        flight.launch = std::move(*fits);
        idle_.erase(fits);
    } else {
        if (!idle_.empty()) {
            idle_.pop_back();  // too small: a larger one comes in its place
        }
        flight.launch = RowCopies(device_, std::max(kPiecesLeast, pieces + pieces / 2));
    }
    for (const Row& row : rows) {
        flight.launch.add(row.from, row.to, row.bytes);
    }
    flight.launch.start(stream);
    // Nothing throws from here on.
    flight.used = std::move(used);
    used.clear();
    std::shared_ptr<Outcome> outcome = flight.outcome;
    flights_.splice(flights_.end(), made);
    return outcome;
}

DeviceGather::DeviceGather(std::shared_ptr<DeviceTier> tier, std::optional<StreamHandle> stream,
                           std::weak_ptr<const void> reading)
    : tier_(std::move(tier)),
      stream_(std::move(stream)),
      reading_(std::move(reading)),
      process_(::getpid()) {
    tier_->reap();
}

DeviceGather::~DeviceGather() {
    if (process_ != ::getpid()) {
        return;  // the parent's
    }
    release(used_);
    for (TableRows& part : parts_) {
        if (part.is_filled) {
            tier_->of(part.table).cache->release(part.admitted);
            tier_->filled_.remove(part.its, finished_);
        }
    }
}

void DeviceGather::release(std::vector<DeviceTier::Used>& used) noexcept {
    for (const DeviceTier::Used& one : used) {
        one.cache->release(one.places);
    }
    used.clear();
}

const DeviceGather::Reads& DeviceGather::add(const FeatureRequest& request) {
    const DeviceTier::Slots& slots = tier_->of(request.table);
    PinnedRows* const pinned = tier_->pinned();
    KeyCache* const on_host =
        pinned == nullptr ? nullptr : pinned->tier().of(request.table).cache.get();
    // A copy: the ids may change meanwhile.
    const std::vector<std::uint64_t> wanted(request.ids.begin(), request.ids.end());
    const std::size_t count = wanted.size();
    const std::uint64_t out = address_of(request.out.data);
    std::vector<KeyPlace> places(count);
    std::vector<std::uint64_t> others;  // not in the GPU's memory, and their rows of `out`
    std::vector<std::uint64_t> other_rows;
    std::vector<KeyPlace> other_places(on_host == nullptr ? 0 : count);
    TableRows& part = parts_.emplace_back();
    part.table = request.table;
    part.out = request.out;
    for (auto* const list :
         {&part.reads.ids, &part.reads.destinations, &part.admitted_rows, &others, &other_rows}) {
        list->reserve(count);
    }
    part.admitted.reserve(count);
    rows_.reserve(rows_.size() + count);
    used_.reserve(used_.size() + 2);
    FilledMemory::List filled;
    filled.push_back({request.out.data, request.out.data + request.out.bytes, reading_});
    // Nothing throws from here on: what is looked up is let go of.
    if (slots.cache != nullptr) {
        part.its = tier_->filled_.add(filled);
        part.is_filled = true;
        slots.cache->lookup(wanted, places);
    }
    for (std::size_t i = 0; i < count; ++i) {
        KeyPlace& place = places[i];
        if (place.state == KeyState::kHit) {
            rows_.push_back({slots.row(place.slot), out + i * slots.row_bytes, slots.row_bytes});
            ++kept_;
            continue;
        }
        others.push_back(wanted[i]);
        other_rows.push_back(i);
        if (place.state == KeyState::kRead && place.slot != kNoSlot) {
            part.admitted.push_back(place);
            part.admitted_rows.push_back(i);
        } else if (place.slot != kNoSlot) {  // another gather brings it: past the cache
            slots.cache->release(std::span(&place, 1));
        }
        place.slot = kNoSlot;
    }
    if (slots.cache != nullptr) {
        used_.push_back({slots.cache.get(), std::move(places), false});
    }
    other_places.resize(on_host == nullptr ? 0 : others.size());
    if (on_host != nullptr) {
        on_host->hold(others, other_places);
    }
    for (std::size_t i = 0; i < others.size(); ++i) {
        if (on_host != nullptr && other_places[i].state == KeyState::kHit) {
            rows_.push_back({pinned->row(request.table, other_places[i].slot),
                             out + other_rows[i] * slots.row_bytes, slots.row_bytes});
        } else {
            part.reads.ids.push_back(others[i]);
            part.reads.destinations.push_back(other_rows[i]);
        }
    }
    if (on_host != nullptr) {
        used_.push_back({on_host, std::move(other_places), false});
    }
    hits_ += count - part.reads.ids.size();
    return part.reads;
}

void DeviceGather::launch() {
    if (!rows_.empty()) {
        outcomes_.reserve(2);
        outcomes_.push_back(tier_->launch(rows_, used_, stream()));
        rows_.clear();
    }
    release(used_);
}

void DeviceGather::finish(bool sound) noexcept {
    if (process_ != ::getpid() || std::exchange(finished_, true)) {
        return;
    }
    std::vector<DeviceTier::Used> used;
    try {
        for (TableRows& part : parts_) {
            if (!sound || part.admitted.empty() || tier_->filled_.overlaps(part.its)) {
                continue;
            }
            const DeviceTier::Slots& slots = tier_->of(part.table);
            used.reserve(parts_.size());
            rows_.reserve(rows_.size() + part.admitted.size());
            for (std::size_t i = 0; i < part.admitted.size(); ++i) {
                rows_.push_back(
                    {address_of(part.out.data) + part.admitted_rows[i] * slots.row_bytes,
                     slots.row(part.admitted[i].slot), slots.row_bytes});
            }
            used.push_back({slots.cache.get(), std::move(part.admitted), true});
            part.admitted.clear();
        }
        if (!rows_.empty()) {
            outcomes_.reserve(2);
            outcomes_.push_back(tier_->launch(rows_, used, stream()));
        }
    } catch (...) {  // the rows are there for the caller, and are not kept
    }
    rows_.clear();
    release(used);
}

bool DeviceGather::wait(std::chrono::nanoseconds limit) {
    if (stream_.has_value() || process_ != ::getpid()) {
        return true;
    }
    const auto begin = std::chrono::steady_clock::now();
    for (const std::shared_ptr<Outcome>& outcome : outcomes_) {
        for (tier_->reap(); !outcome->over; tier_->reap()) {
            if (std::chrono::steady_clock::now() - begin >= limit) {
                return false;
            }
            const timespec nap{0, kLookAgain};
            ::nanosleep(&nap, nullptr);
        }
        if (outcome->error) {
            std::rethrow_exception(outcome->error);
        }
    }
    return true;
}

std::shared_ptr<DeviceTier> DeviceTiers::get(std::int32_t device, const Make& make) {
    const std::lock_guard lock(mutex_);
    const auto known = tiers_.find(device);
    return known != tiers_.end() ? known->second
                                 : tiers_.emplace(device, make(pinned_)).first->second;
}

std::vector<std::shared_ptr<DeviceTier>> DeviceTiers::all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<DeviceTier>> found;
    for (const auto& [device, tier] : tiers_) {
        if (tier != nullptr) {
            found.push_back(tier);
        }
    }
    return found;
}

}  // namespace penstock::features
