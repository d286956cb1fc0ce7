// SPDX-License-Identifier: Apache-2.0
#include "engine/slots.hpp"

#include "base/assert.hpp"

#include <algorithm>
#include <utility>

namespace penstock::engine {

Slots::Slots(const SlotOptions& options, SlotPool& pool, const MemoryPlace& place,
             const std::function<void()>& poke)
    : options_(options), pool_(&pool), holder_{place, poke} {
    options_.large_bytes = std::min(options_.large_bytes, SlotPool::kChunkBytes);
    large_.chunks.reserve(SlotPool::kChunksMax);
    small_.chunks.reserve(SlotPool::kChunksMax);
    pool_->add(holder_);
}

Slots::~Slots() {
    if (pool_ != nullptr) {
        pool_->remove(holder_);
    }
}

base::Result<Slot*> Slots::take(std::uint32_t bytes, Mover& mover) {
    PENSTOCK_ASSERT(bytes <= options_.large_bytes);
    Shelf& shelf = shelf_of(bytes);
    if (shelf.free.empty() && (pool_ != nullptr || shelf.chunks.empty())) {
        PENSTOCK_CHECK(stock(shelf, mover));
    }
    // The one that was last in use is still in the cache.
    Slot* const slot = shelf.free.pop_front();
    if (slot != nullptr) {
        ++slot->chunk->out;
    }
    return slot;
}

void Slots::give_back(Slot& slot) {
    SlotChunk& chunk = *slot.chunk;
    Shelf& shelf = shelf_of(slot.bytes);
    PENSTOCK_ASSERT(chunk.out != 0);
    if (!chunk.leaves) {
        shelf.free.push_front(slot);
    }
    if (--chunk.out == 0 && pool_ != nullptr && (chunk.leaves || pool_->wanted())) {
        return_chunk(shelf, chunk);
    }
}

// Leaves the shelf as it is where a device has no chunk now.
base::Result<void> Slots::stock(Shelf& shelf, Mover& mover) {
    const bool small = &shelf == &small_;
    const std::uint32_t bytes = small ? options_.small_bytes : options_.large_bytes;
    if (pool_ != nullptr) {
        auto taken = pool_->take(holder_, mover);
        if (!taken) {
            // Those that are out come back.
            return shelf.chunks.empty() ? base::Result<void>(base::fail(std::move(taken.error())))
                                        : base::Result<void>();
        }
        if (*taken == nullptr) {
            return {};
        }
        auto made = base::as_result("allocate", [&]() -> base::Result<void> {
            cut(shelf, **taken, bytes, SlotPool::kChunkBytes / bytes);
            return {};
        });
        if (!made) {
            pool_->give_back(holder_.place, **taken);
        }
        return made;
    }
    return base::as_result("allocate", [&]() -> base::Result<void> {
        const std::uint32_t count = small ? options_.small_count : options_.large_count;
        own_.reserve(2);
        auto chunk = std::make_unique<SlotChunk>();
        PENSTOCK_TRY(block, mover.slot_memory(std::uint64_t{bytes} * count));
        chunk->block = std::move(block);
        cut(shelf, *chunk, bytes, count);
        own_.push_back(std::move(chunk));
        return {};
    });
}

void Slots::cut(Shelf& shelf, SlotChunk& chunk, std::uint32_t bytes, std::uint32_t count) {
    shelf.chunks.reserve(shelf.chunks.size() + 1);
    chunk.slots.assign(count, Slot());
    shelf.chunks.push_back(&chunk);
    for (std::uint32_t i = 0; i < count; ++i) {
        Slot& slot = chunk.slots[i];
        slot.data = chunk.block.data() + std::uint64_t{bytes} * i;
        slot.bytes = bytes;
        slot.chunk = &chunk;
        shelf.free.push_back(slot);
    }
}

void Slots::withdraw(Shelf& shelf, SlotChunk& chunk) {
    base::Fifo<Slot> kept;
    while (Slot* slot = shelf.free.pop_front()) {
        if (slot->chunk != &chunk) {
            kept.push_back(*slot);
        }
    }
    shelf.free = kept;
}

void Slots::return_chunk(Shelf& shelf, SlotChunk& chunk) {
    if (!std::exchange(chunk.leaves, false)) {
        withdraw(shelf, chunk);
    }
    shelf.chunks.erase(std::find(shelf.chunks.begin(), shelf.chunks.end(), &chunk));
    pool_->give_back(holder_.place, chunk);
}

void Slots::share() {
    if (pool_ == nullptr || !pool_->wanted()) {
        return;
    }
    std::size_t held = 0;
    for (Shelf* shelf : {&large_, &small_}) {
        for (std::size_t i = shelf->chunks.size(); i-- > 0;) {
            if (shelf->chunks[i]->out == 0) {
                return_chunk(*shelf, *shelf->chunks[i]);
            }
        }
        held += static_cast<std::size_t>(
            std::count_if(shelf->chunks.begin(), shelf->chunks.end(),
                          [](const SlotChunk* chunk) { return !chunk->leaves; }));
    }
    const std::size_t keep = pool_->share(holder_.place);
    for (Shelf* shelf : {&large_, &small_}) {
        for (SlotChunk* chunk : shelf->chunks) {
            if (held > keep && !chunk->leaves) {
                chunk->leaves = true;
                withdraw(*shelf, *chunk);
                --held;
            }
        }
    }
}

namespace {

std::unique_ptr<Mover> make_host_mover(const MakeMover& make, const std::function<void()>& wake) {
    auto mover = make({}, wake);
    PENSTOCK_ASSERT(mover && *mover);  // the host is always there
    return std::move(*mover);
}

}  // namespace

Movers::Movers(const MakeMover& make, const std::function<void()>& wake,
               const std::function<void()>& poke, const SlotOptions& slots, SlotPool* pool,
               Executor& maker)
    : make_(make),
      wake_(wake),
      poke_(poke),
      slots_(slots),
      pool_(pool),
      maker_(maker),
      host_(slots, make_host_mover(make, wake)) {}

base::Result<Station*> Movers::at(const MemoryPlace& place, std::uint64_t number) {
    if (place == host_.place) {
        return &host_;
    }
    for (const auto& station : devices_) {
        if (station->place == place) {
            return station.get();
        }
    }
    PENSTOCK_ASSERT(pool_ != nullptr);
    met_devices_ = true;
    return base::as_result("reach a device", [&]() -> base::Result<Station*> {
        auto making = std::find_if(makings_.begin(), makings_.end(),
                                   [&](const auto& each) { return each->place == place; });
        if (making != makings_.end() && (*making)->number < number && refused(**making)) {
            makings_.erase(making);
            making = makings_.end();
        }
        if (making == makings_.end()) {
            makings_.reserve(makings_.size() + 1);
            auto fresh = std::make_unique<Making>();
            fresh->movers = this;
            fresh->place = place;
            fresh->number = number;
            fresh->run = make;
            fresh->may_take_long = true;  // a fork does not wait for it
            makings_.push_back(std::move(fresh));
            maker_.post(*makings_.back());
            making = makings_.end() - 1;
        }
        if (!(*making)->done.load()) {
            return nullptr;
        }
        base::Result<std::unique_ptr<Mover>>& made = *(*making)->made;
        if (!made) {
            return base::fail(base::Error(made.error()));
        }
        devices_.reserve(devices_.size() + 1);
        std::unique_ptr<Mover> mover = std::move(*made);
        makings_.erase(making);  // first: without memory for the station, the next use makes both
        devices_.push_back(
            std::make_unique<Station>(slots_, *pool_, place, poke_, std::move(mover)));
        return devices_.back().get();
    });
}

// On the maker's thread. The job is gone as soon as it is done; a channel outlives the threads of
// its domain.
void Movers::make(Job& job) noexcept {
    auto& self = static_cast<Making&>(job);
    Movers& movers = *self.movers;
    self.made =
        base::as_result("reach a device", [&] { return movers.make_(self.place, movers.wake_); });
    self.done.store(true);
    movers.poke_();
}

bool Movers::refused(const Making& making) {
    return making.done.load() && !*making.made;
}

void Movers::forget_those_refused() {
    makings_.erase(std::remove_if(makings_.begin(), makings_.end(),
                                  [](const auto& making) { return refused(*making); }),
                   makings_.end());
}

bool Movers::ready() const {
    return host_.mover->ready() ||
           std::any_of(devices_.begin(), devices_.end(),
                       [](const auto& station) { return station->mover->ready(); });
}

void Movers::share_slots() {
    for (const auto& station : devices_) {
        station->slots.share();
    }
}

base::Nanos Movers::look_again() const {
    base::Nanos soonest = host_.mover->look_again();
    for (const auto& station : devices_) {
        soonest = std::min(soonest, station->mover->look_again());
    }
    return soonest;
}

void Movers::abandon_after_fork() {
    for (const auto& station : devices_) {
        station->mover->abandon_after_fork();
    }
}

}  // namespace penstock::engine
