// SPDX-License-Identifier: Apache-2.0
#include "memory/fresh_memory.hpp"

#include "base/align.hpp"
#include "base/of_process.hpp"
#include "base/units.hpp"
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

// Gives pages back to the system.
void discard(std::span<std::byte> pages) noexcept {
    if (!pages.empty()) {
        static_cast<void>(::madvise(pages.data(), pages.size(), MADV_DONTNEED));
    }
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
    void add(const std::shared_ptr<void>& mapping, std::span<std::byte> bytes) {
        {
            const std::lock_guard guard(mutex_);
            parts_.emplace_back(mapping, bytes);
            bytes_ += bytes.size();
            if (bytes_ <= kKeptBytesMax) {
                return;
            }
        }
        discard();
    }
    void discard() noexcept {
        std::vector<std::pair<std::weak_ptr<void>, std::span<std::byte>>> parts;
        {
            const std::lock_guard guard(mutex_);
            parts.swap(parts_);
            bytes_ = 0;
        }
        for (const auto& [mapping, bytes] : parts) {
            if (const auto in_use = mapping.lock()) {
                memory::discard(bytes);
            }
        }
    }

private:
    std::mutex mutex_;
    std::vector<std::pair<std::weak_ptr<void>, std::span<std::byte>>> parts_;
    std::uint64_t bytes_ = 0;
};

struct Allocated {
    std::shared_ptr<void> owner;
    std::span<std::byte> bytes;
    bool faulted_in = false;
    bool kept = false;
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
        auto loan = std::make_shared<PooledBlock>(std::move(taken));
        const std::span<std::byte> lent = loan->block().bytes();
        return Allocated{loan, lent, loan->used(), true};
    }
    auto block = Block::make(bytes);
    if (!block) {
        pool->trim();  // what is kept may be what is missing
        block = Block::make(bytes);
    }
    if (!block) {
        return base::fail(std::move(block.error()));
    }
    auto mapping = std::make_shared<Block>(std::move(*block));
    const std::span<std::byte> mapped = mapping->bytes();
    return Allocated{std::move(mapping), mapped};
}

}  // namespace

struct FreshMemory::Mapping {
    std::shared_ptr<void> owner;            ///< of it, or of memory of the heap, which has one part
    bool kept = false;                      ///< for the next load, when all parts are gone
    std::vector<std::atomic<bool>> in_use;  ///< each part, and one more that never is
};

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
    const std::span<std::byte> bytes = memory.bytes;
    made.faulted_in_ = memory.faulted_in;
    FreeParts::all().discard();
    const auto mapping = std::make_shared<Mapping>();
    mapping->owner = std::move(memory.owner);
    mapping->kept = memory.kept;
    mapping->in_use = std::vector<std::atomic<bool>>(stretches.size() + 1);
    std::vector<std::size_t> members;
    std::uint64_t begin = 0;
    std::size_t parts = 0;
    const auto close = [&](std::uint64_t end, std::uint64_t next) {
        const auto part = std::make_shared<Part>(mapping, parts, bytes.subspan(begin, end - begin),
                                                 bytes.subspan(begin, next - begin));
        mapping->in_use[parts++] = true;
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
            close(end, positions[i]);
        }
        if (members.empty()) {
            begin = positions[i];
        }
        members.push_back(i);
        end = positions[i] + s.bytes;
    }
    close(end, bytes.size());  // a huge page may be there beyond the end
    return made;
}

std::byte* FreshMemory::address(std::size_t stretch) const {
    const Place& place = places_.at(stretch);
    return place.part ? place.part->bytes().data() + place.offset : nullptr;
}

// A page that two parts share goes with the last of them: one of its 4 KiB would keep all of a huge
// page. Both ask after they have said that they are gone, so at least one of them sees the other.
std::span<std::byte> FreshMemory::Part::pages() const {
    constexpr std::uintptr_t kPage = base::kPageBytes;
    const auto& in_use = mapping_->in_use;
    const auto begin = reinterpret_cast<std::uintptr_t>(all_.data());
    const std::uintptr_t end = begin + all_.size();
    const bool shares_first = number_ != 0 && in_use[number_ - 1];
    const std::uintptr_t first =
        shares_first ? base::align_up(begin, kPage) : base::align_down(begin, kPage);
    const std::uintptr_t last =
        in_use[number_ + 1] ? base::align_down(end, kPage) : base::align_up(end, kPage);
    return {reinterpret_cast<std::byte*>(first), last > first ? last - first : 0};
}

FreshMemory::Part::~Part() {
    if (mapping_.use_count() == 1) {
        return;  // all of it goes
    }
    mapping_->in_use[number_] = false;
    try {
        if (mapping_->kept) {
            FreeParts::all().add(mapping_, pages());
            return;
        }
    } catch (const std::bad_alloc&) {  // there is no memory to note it
    }
    discard(pages());
}

}  // namespace penstock::memory
