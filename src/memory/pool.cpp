// SPDX-License-Identifier: Apache-2.0
// The shelf holds returned blocks, newest last in each class: the newest is the warmest, so it is
// handed out first. At the bound the oldest of all classes is freed, so that a size that is no
// longer used does not fill the shelf forever.
#include "memory/pool.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/text/units.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <list>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace penstock::memory {

using base::fail;
using base::Result;

namespace {

// A doubling of the size has eight classes: a power of two alone would waste half of a block, also
// where its pages are huge.
constexpr unsigned kClassBits = 3;
constexpr std::size_t kClasses = std::size_t{64} << kClassBits;

// The power of two that the size is above: 4 for 17 to 32 bytes.
unsigned doubling_of(std::uint64_t bytes) {
    return static_cast<unsigned>(std::bit_width(bytes - 1)) - 1;
}

std::uint64_t class_bytes_of(std::uint64_t bytes) {
    const std::uint64_t least = std::max(bytes, base::kPageBytes);
    const std::uint64_t step = std::uint64_t{1} << (doubling_of(least) - kClassBits);
    return base::align_up(least, std::max(step, base::kPageBytes));
}

std::size_t class_of(std::uint64_t class_bytes) {
    const unsigned doubling = doubling_of(class_bytes);
    const std::uint64_t above = class_bytes - 1 - (std::uint64_t{1} << doubling);
    return (std::size_t{doubling} << kClassBits) + (above >> (doubling - kClassBits));
}

}  // namespace

struct PooledBlock::Shelf {
    struct Kept {
        Block block;
        std::uint64_t age = 0;  ///< counts up: the smallest is the oldest
    };

    explicit Shelf(std::uint64_t max) : kept_bytes_max(max) {}

    // Takes a block of the class, if there is one.
    Block take(std::size_t index) {
        const std::lock_guard<std::mutex> guard(mutex);
        auto& kept = classes[index];
        if (kept.empty()) {
            return {};
        }
        Block block = std::move(kept.back().block);
        kept.pop_back();
        PENSTOCK_ASSERT(kept_bytes >= block.size());
        kept_bytes -= block.size();
        return block;
    }

    // Removed blocks are unmapped after the unlock.
    void put(Block block) noexcept {
        const std::uint64_t bytes = block.size();
        if (bytes == 0) {
            return;
        }
        std::vector<Block> fallen;
        try {
            const std::lock_guard<std::mutex> guard(mutex);
            if (closed || bytes > kept_bytes_max) {
                return;
            }
            while (kept_bytes > kept_bytes_max - bytes) {
                auto& kept = oldest();
                const std::uint64_t oldest_bytes = kept.front().block.size();
                fallen.push_back(std::move(kept.front().block));
                kept_bytes -= oldest_bytes;
                kept.pop_front();
            }
            classes[class_of(bytes)].push_back(Kept{std::move(block), ++ages});
            kept_bytes += bytes;
            PENSTOCK_ASSERT(kept_bytes <= kept_bytes_max);
        } catch (const std::bad_alloc&) {
            // There is no memory to remember it: it is returned to the system.
        }
    }

    void clear(bool for_good) {
        std::array<std::list<Kept>, kClasses> fallen;
        const std::lock_guard<std::mutex> guard(mutex);
        std::swap(fallen, classes);
        kept_bytes = 0;
        closed = closed || for_good;
    }

    std::list<Kept>& oldest() {
        std::list<Kept>* found = nullptr;
        for (auto& kept : classes) {
            if (!kept.empty() && (found == nullptr || kept.front().age < found->front().age)) {
                found = &kept;
            }
        }
        PENSTOCK_ASSERT(found != nullptr);
        return *found;
    }

    const pid_t process = ::getpid();
    std::mutex mutex;
    std::array<std::list<Kept>, kClasses> classes;
    const std::uint64_t kept_bytes_max;
    std::uint64_t kept_bytes = 0;
    std::uint64_t ages = 0;
    bool closed = false;  ///< the pool is destroyed: nothing would be taken from here again
};

PooledBlock::PooledBlock(Block block, std::uint64_t bytes, bool used, std::shared_ptr<Shelf> shelf)
    : block_(std::move(block)), bytes_(bytes), used_(used), shelf_(std::move(shelf)) {}

PooledBlock::PooledBlock(PooledBlock&& other) noexcept
    : block_(std::move(other.block_)),
      bytes_(std::exchange(other.bytes_, 0)),
      used_(other.used_),
      shelf_(std::move(other.shelf_)) {}

PooledBlock& PooledBlock::operator=(PooledBlock&& other) noexcept {
    if (this != &other) {
        give_back();
        block_ = std::move(other.block_);
        bytes_ = std::exchange(other.bytes_, 0);
        used_ = other.used_;
        shelf_ = std::move(other.shelf_);
    }
    return *this;
}

PooledBlock::~PooledBlock() {
    give_back();
}

// A child of a fork frees the block: the shelf is the parent's.
void PooledBlock::give_back() noexcept {
    if (shelf_ && shelf_->process == ::getpid()) {
        shelf_->put(std::move(block_));
    } else if (shelf_) {
        base::leave_to_parent(std::move(shelf_));
    }
}

Pool::Pool(const Options& options)
    : options_(options),
      shelf_([max = options.kept_bytes_max] { return std::make_shared<PooledBlock::Shelf>(max); }) {
}

Pool::~Pool() {
    if (shelf_.is_made()) {
        shelf_->clear(true);
    }
}

Result<PooledBlock> Pool::take(std::uint64_t bytes) {
    if (bytes == 0) {
        return PooledBlock();
    }
    constexpr std::uint64_t kLargest = std::uint64_t{1} << 62;
    if (bytes > kLargest) {
        return fail(base::error(
            ErrorCode::kOutOfMemory, "allocate",
            fmt::format("{} bytes are more than any machine has; ask for less", bytes)));
    }
    const std::uint64_t class_bytes = class_bytes_of(bytes);
    Block block = shelf_->take(class_of(class_bytes));
    const bool used = block.size() != 0;
    if (!used) {
        auto made = Block::make(class_bytes, options_.block);
        if (!made) {
            trim();  // what is kept may be what is missing
            made = Block::make(class_bytes, options_.block);
        }
        if (!made) {
            return fail(std::move(made.error()));
        }
        block = std::move(*made);
    }
    return PooledBlock(std::move(block), bytes, used, shelf_.get());
}

std::uint64_t Pool::kept_bytes() const {
    const std::lock_guard<std::mutex> guard(shelf_->mutex);
    return shelf_->kept_bytes;
}

void Pool::trim() {
    shelf_->clear(false);
}

}  // namespace penstock::memory
