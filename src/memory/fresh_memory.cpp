// SPDX-License-Identifier: Apache-2.0
#include "memory/fresh_memory.hpp"

#include "base/align.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

namespace penstock::memory {

namespace {

// Minimum size of a part, because the pages at its ends stay when it is freed.
constexpr std::uint64_t kPartBytesMin = base::kMiB;
constexpr std::uint64_t kHeapBytesMax = 64 * base::kKiB;
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

// Memory and its owner.
base::Result<std::pair<std::shared_ptr<void>, std::span<std::byte>>> allocate(std::uint64_t bytes) {
    if (bytes <= kHeapBytesMax) {
        constexpr std::align_val_t kAligned{kLineBytes};
        auto* const data = static_cast<std::byte*>(::operator new(bytes, kAligned));
        const std::shared_ptr<void> owner(data, [](void* p) { ::operator delete(p, kAligned); });
        return std::pair{owner, std::span(data, bytes)};
    }
    PENSTOCK_TRY(block, Block::make(bytes));
    auto mapping = std::make_shared<Block>(std::move(block));
    const std::span<std::byte> mapped = mapping->bytes();
    return std::pair{std::shared_ptr<void>(std::move(mapping)), mapped};
}

}  // namespace

base::Result<FreshMemory> FreshMemory::make(std::span<const Stretch> stretches) {
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
    PENSTOCK_TRY(memory, allocate(total));
    const std::shared_ptr<void>& mapping = memory.first;
    const std::span<std::byte> bytes = memory.second;
    std::vector<std::size_t> members;
    std::uint64_t begin = 0;
    const auto close = [&](std::uint64_t end) {
        const auto part = std::make_shared<Part>(mapping, bytes.subspan(begin, end - begin));
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
    const Place& place = places_.at(stretch);
    return place.part ? place.part->bytes().data() + place.offset : nullptr;
}

// Pages at the ends may belong to the neighbours too.
FreshMemory::Part::~Part() {
    if (mapping_.use_count() == 1) {
        return;  // all of it goes
    }
    const auto first = base::align_up(reinterpret_cast<std::uintptr_t>(bytes_.data()),
                                      std::uintptr_t{base::kPageBytes});
    const auto last =
        base::align_down(reinterpret_cast<std::uintptr_t>(bytes_.data() + bytes_.size()),
                         std::uintptr_t{base::kPageBytes});
    if (first < last) {
        static_cast<void>(::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED));
    }
}

}  // namespace penstock::memory
