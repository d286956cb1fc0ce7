// SPDX-License-Identifier: Apache-2.0
// The slots of a channel: large ones of a block and small ones, so that many small unaligned reads
// are not held up by a few large slots. The memory comes with the first use and stays.
#pragma once

#include "base/result.hpp"
#include "engine/mover.hpp"
#include "engine/request.hpp"

#include <cstdint>
#include <vector>

namespace penstock::engine {

struct SlotOptions {
    std::uint32_t large_bytes = 1 << 20;
    std::uint32_t large_count = 16;
    std::uint32_t small_bytes = 16 << 10;
    std::uint32_t small_count = 128;
};

class Slots {
public:
    explicit Slots(const SlotOptions& options) : options_(options) {}

    /// nullptr when none that is large enough is free; an error when there is no memory for them.
    [[nodiscard]] base::Result<Slot*> take(std::uint32_t bytes, Mover& mover);
    void give_back(Slot& slot);

private:
    struct Shelf {
        base::Fifo<Slot> free;
        std::vector<Slot> slots;
        memory::Block block;
    };
    static base::Result<void> stock(Shelf& shelf, std::uint32_t bytes, std::uint32_t count,
                                    Mover& mover);

    SlotOptions options_;
    Shelf large_;
    Shelf small_;
};

}  // namespace penstock::engine
