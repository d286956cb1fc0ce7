// SPDX-License-Identifier: Apache-2.0
#include "memory/fresh_memory.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/of_process.hpp"
#include "base/planted.hpp"
#include "base/text/units.hpp"
#include "memory/lasting_memory.hpp"
#include "memory/pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <numeric>
#include <utility>

namespace penstock::memory {

namespace {

struct Allocated {
    std::shared_ptr<void> owner;
    std::span<std::byte> bytes;
    bool faulted_in = false;
    bool is_kept = false;          ///< for the next load, when all of it is free
    const Block* block = nullptr;  ///< of the owner; nullptr: it is of the heap, and has one part
};

}  // namespace

struct FreshMemory::Mapping {
    /// Throws std::bad_alloc.
    Mapping(Allocated memory, std::size_t parts_max)
        : allocated(std::move(memory)), in_use(parts_max) {
        begins.reserve(parts_max);
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping() {
        if (has_holes_ && allocated.is_kept) {
            allocated.block->allow_huge_pages(true);
        }
    }

    // A part is all up to the begin of the next one. The first and the last may have more: what
    // lies before and behind them in the mapping.
    [[nodiscard]] std::uintptr_t begin(std::size_t part) const {
        return part == 0 ? address() : address() + begins[part];
    }
    [[nodiscard]] std::uintptr_t end(std::size_t part) const {
        return part + 1 == begins.size() ? address() + allocated.bytes.size() : begin(part + 1);
    }
    [[nodiscard]] std::span<std::byte> pages_without_user(std::size_t part) const;
    void discard(std::span<std::byte> pages) noexcept;

    const Allocated allocated;
    std::vector<std::uint64_t> begins;      ///< of each part, ascending; complete before one goes
    std::vector<std::atomic<bool>> in_use;  ///< each part; never again once it is false

private:
    [[nodiscard]] std::uintptr_t address() const {
        return reinterpret_cast<std::uintptr_t>(allocated.bytes.data());
    }
    [[nodiscard]] bool is_used(std::span<const std::byte> pages) const;

    std::atomic<bool> has_holes_{false};
};

// The pages that a part touches and none in use. It walks on over parts that are gone until the
// page ends: any number of short ones may lie in it. Every part asks after it has said that it is
// gone, so of those that go together the last one sees all others gone.
std::span<std::byte> FreshMemory::Mapping::pages_without_user(std::size_t part) const {
    constexpr std::uintptr_t kPage = base::kPageBytes;
    std::uintptr_t first = base::align_down(begin(part), kPage);
    for (std::size_t i = part; i-- > 0 && end(i) > first;) {
        if (in_use[i]) {
            first += kPage;
            break;
        }
        if (base::planted("direct_neighbours")) {
            break;
        }
    }
    std::uintptr_t last = base::align_up(end(part), kPage);
    for (std::size_t i = part + 1; i < begins.size() && begin(i) < last; ++i) {
        if (in_use[i]) {
            last -= kPage;
            break;
        }
        if (base::planted("direct_neighbours")) {
            break;
        }
    }
    return {reinterpret_cast<std::byte*>(first), last > first ? last - first : 0};
}

bool FreshMemory::Mapping::is_used(std::span<const std::byte> pages) const {
    const std::uint64_t from = reinterpret_cast<std::uintptr_t>(pages.data()) - address();
    const auto behind = std::upper_bound(begins.begin(), begins.end(), from);
    auto i = static_cast<std::size_t>(std::max<std::ptrdiff_t>(behind - begins.begin(), 1) - 1);
    for (; i < begins.size() && begins[i] < from + pages.size(); ++i) {
        if (in_use[i]) {
            return true;
        }
    }
    return false;
}

// Returns pages to the system: they are zeros from then on. Huge pages are not wanted any more: the
// kernel makes one of what is left, if only a page of 4 KiB, and so fills the holes again.
void FreshMemory::Mapping::discard(std::span<std::byte> pages) noexcept {
    if (pages.empty()) {
        return;
    }
    PENSTOCK_ASSERT(allocated.block != nullptr);
    const bool is_free = base::planted("direct_neighbours") || !is_used(pages);
    PENSTOCK_ASSERT(is_free);
    PENSTOCK_ASSERT(!LastingMemory::overlaps(pages));
    if (!has_holes_.exchange(true)) {
        allocated.block->allow_huge_pages(false);
    }
    static_cast<void>(::madvise(pages.data(), pages.size(), MADV_DONTNEED));
}

namespace {

using Mapping = FreshMemory::Mapping;

// Minimum size of a part, because the pages at its ends stay when it is freed.
constexpr std::uint64_t kPartBytesMin = base::kMiB;
constexpr std::uint64_t kHeapBytesMax = 64 * base::kKiB;
constexpr std::uint64_t kKeptBytesMax = 64 * base::kMiB;
constexpr std::uint64_t kLineBytes = 64;

// Computes positions in memory that begins at a multiple of `alignment`, and its size.
std::uint64_t lay_out(std::span<const Stretch> stretches, std::span<const std::size_t> order,
                      std::uint64_t alignment, std::vector<std::uint64_t>& positions) {
    std::uint64_t at = 0;
    std::uint64_t end = 0;  // in the file
    for (const std::size_t i : order) {
        const Stretch& s = stretches[i];
        if (s.bytes == 0) {
            continue;
        }
        if (at != 0 && s.offset >= end && s.offset - end < base::kPageBytes) {
            at += s.offset - end;
        } else {
            at = base::align_up(at, alignment) + s.offset % alignment;
        }
        positions[i] = at;
        at += s.bytes;
        end = s.offset + s.bytes;
    }
    return at;
}

// Parts that are free while others of their mapping are in use. Mostly all of them go, one after
// the other, and the mapping is kept whole.
class FreeParts {
public:
    /// Never destroyed: tensors may outlive what is.
    static FreeParts& all() {
        static auto& of_process =
            *new base::OfProcess<FreeParts>([] { return std::make_shared<FreeParts>(); });
        return *of_process;
    }
    void add(const std::shared_ptr<Mapping>& mapping, std::span<std::byte> pages) {
        {
            const std::lock_guard guard(mutex_);
            parts_.emplace_back(mapping, pages);
            bytes_ += pages.size();
            if (bytes_ <= kKeptBytesMax) {
                return;
            }
        }
        discard();
    }
    void discard() noexcept {
        std::vector<std::pair<std::weak_ptr<Mapping>, std::span<std::byte>>> parts;
        {
            const std::lock_guard guard(mutex_);
            parts.swap(parts_);
            bytes_ = 0;
        }
        for (const auto& [mapping, pages] : parts) {
            if (const auto there = mapping.lock()) {
                there->discard(pages);
            }
        }
    }

private:
    std::mutex mutex_;
    std::vector<std::pair<std::weak_ptr<Mapping>, std::span<std::byte>>> parts_;
    std::uint64_t bytes_ = 0;
};

base::Result<Allocated> allocate(std::uint64_t bytes, bool of_small_load) {
    if (bytes <= kHeapBytesMax) {
        constexpr std::align_val_t kAligned{kLineBytes};
        auto* const data = static_cast<std::byte*>(::operator new(bytes, kAligned));
        const std::shared_ptr<void> owner(data, [](void* p) { ::operator delete(p, kAligned); });
        return Allocated{owner, {data, bytes}, true};
    }
    // Never destroyed: tensors may outlive what is.
    static auto* const pool = new Pool({.kept_bytes_max = kKeptBytesMax, .block = {}});
    if (of_small_load && bytes <= FreshMemory::kSmallBytes) {
        PENSTOCK_TRY(taken, pool->take(bytes));
        const auto loan = std::make_shared<PooledBlock>(std::move(taken));
        const Block& lent = loan->block();
        return Allocated{loan, lent.bytes(), loan->used(), true, &lent};
    }
    auto block = Block::make(bytes);
    if (!block) {
        pool->trim();  // what is kept may be what is missing
        block = Block::make(bytes);
    }
    if (!block) {
        return base::fail(std::move(block.error()));
    }
    const auto mapping = std::make_shared<Block>(std::move(*block));
    return Allocated{mapping, mapping->bytes(), false, false, mapping.get()};
}

}  // namespace

base::Result<FreshMemory> FreshMemory::make(std::span<const Stretch> stretches,
                                            bool of_small_load) {
    FreshMemory made;
    made.places_.resize(stretches.size());
    std::vector<std::size_t> order(stretches.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return stretches[a].offset < stretches[b].offset;
    });
    std::vector<std::uint64_t> positions(stretches.size());
    std::uint64_t total = lay_out(stretches, order, kLineBytes, positions);
    if (total == 0) {
        return made;
    }
    if (total > kHeapBytesMax) {
        total = lay_out(stretches, order, base::kPageBytes, positions);
    }
    PENSTOCK_TRY(memory, allocate(total, of_small_load));
    made.faulted_in_ = memory.faulted_in;
    FreeParts::all().discard();
    const std::span<std::byte> bytes = memory.bytes;
    const auto mapping = std::make_shared<Mapping>(std::move(memory), stretches.size());
    std::vector<std::size_t> members;
    std::uint64_t begin = 0;
    const auto close = [&](std::uint64_t end) {
        const std::size_t number = mapping->begins.size();
        const auto part =
            std::make_shared<Share>(mapping, number, bytes.subspan(begin, end - begin));
        mapping->begins.push_back(begin);
        mapping->in_use[number] = true;
        for (const std::size_t i : members) {
            made.places_[i] = {part, positions[i] - begin};
        }
        members.clear();
    };
    std::uint64_t end = 0;
    for (const std::size_t i : order) {
        const Stretch& s = stretches[i];
        if (s.bytes == 0) {
            continue;
        }
        const bool large = s.bytes >= kPartBytesMin || end - begin >= kPartBytesMin;
        if (!members.empty() && large) {
            close(end);
        }
        if (members.empty()) {
            begin = positions[i];
        }
        members.push_back(i);
        end = positions[i] + s.bytes;
    }
    close(end);
    return made;
}

std::byte* FreshMemory::address(std::size_t stretch) const {
    const SharePlace& place = places_.at(stretch);
    return place.part ? place.part->bytes().data() + place.offset : nullptr;
}

FreshMemory::Share::~Share() {
    if (mapping_.use_count() == 1 || mapping_->allocated.block == nullptr) {
        return;  // all of it goes
    }
    mapping_->in_use[number_] = false;
    try {
        if (mapping_->allocated.is_kept) {
            FreeParts::all().add(mapping_, mapping_->pages_without_user(number_));
            return;
        }
    } catch (const std::bad_alloc&) {  // there is no memory to note it
    }
    mapping_->discard(mapping_->pages_without_user(number_));
}

}  // namespace penstock::memory
