// SPDX-License-Identifier: Apache-2.0
#include "engine/slots.hpp"

#include "base/assert.hpp"

namespace penstock::engine {

base::Result<Slot*> Slots::take(std::uint32_t bytes, Mover& mover) {
    PENSTOCK_ASSERT(bytes <= options_.large_bytes);
    const bool small = bytes <= options_.small_bytes && options_.small_count != 0;
    Shelf& shelf = small ? small_ : large_;
    if (shelf.slots.empty()) {
        PENSTOCK_CHECK(small ? stock(shelf, options_.small_bytes, options_.small_count, mover)
                             : stock(shelf, options_.large_bytes, options_.large_count, mover));
    }
    // The one that was last in use is still in the cache.
    return shelf.free.pop_front();
}

void Slots::give_back(Slot& slot) {
    const bool small = slot.bytes == options_.small_bytes;
    PENSTOCK_ASSERT(small || slot.bytes == options_.large_bytes);
    (small ? small_ : large_).free.push_front(slot);
}

base::Result<void> Slots::stock(Shelf& shelf, std::uint32_t bytes, std::uint32_t count,
                                Mover& mover) {
    return base::as_result("allocate", [&]() -> base::Result<void> {
        std::vector<Slot> slots(count);
        PENSTOCK_TRY(block, mover.slot_memory(std::uint64_t{bytes} * count));
        shelf.block = std::move(block);
        shelf.slots = std::move(slots);
        for (std::uint32_t i = 0; i < count; ++i) {
            shelf.slots[i].data = shelf.block.data() + std::uint64_t{bytes} * i;
            shelf.slots[i].bytes = bytes;
            shelf.free.push_back(shelf.slots[i]);
        }
        return {};
    });
}

}  // namespace penstock::engine
