// SPDX-License-Identifier: Apache-2.0
// Bytes that loads lose while their tensors are freed in random order: the memory of a load against
// what a model of pages says that it must still hold.
#include "base/align.hpp"
#include "base/text/units.hpp"
#include "memory/fresh_memory.hpp"
#include "model.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

namespace penstock::benchmarks {

namespace {

constexpr std::uint64_t kPage = base::kPageBytes;
constexpr std::uint64_t kPartBytes = base::kMiB;  // a stretch of so much is a part by itself

// Large stretches with short ones between them, mostly without a gap: as weights and biases lie.
std::vector<memory::Stretch> random_stretches(std::mt19937_64& random) {
    std::vector<memory::Stretch> made;
    std::uint64_t at = random() % kPage;
    for (std::uint64_t i = 0, count = 20 + random() % 60; i < count; ++i) {
        // A load without a large one may be of the heap, which gives no pages back.
        const std::uint64_t kind = i == 1 ? 0 : random() % 8;
        const std::uint64_t bytes = kind == 0  ? kPartBytes + random() % 9000
                                    : kind < 3 ? 1 + random() % (2 * kPage)
                                               : 1 + random() % 700;
        made.push_back({at, bytes});
        at += bytes + (random() % 8 == 0 ? random() % 64 : 0);
    }
    return made;
}

class Load {
public:
    Load(std::mt19937_64& random, bool neighbours_only)
        : stretches_(random_stretches(random)), neighbours_only_(neighbours_only) {
        const auto memory = value_of(memory::FreshMemory::make(stretches_, random() % 2 == 0));
        for (std::size_t i = 0; i < stretches_.size(); ++i) {
            places_.push_back(memory.place(i));
            data_.push_back(memory.address(i));
            ends_of(i, [&](std::byte& byte) { byte = value(i); });
        }
    }
    [[nodiscard]] std::size_t size() const { return stretches_.size(); }

    // Frees one and returns the wrong bytes of those that lie near it.
    std::uint64_t free(std::size_t i) {
        const std::span<std::byte> part = places_[i].part->bytes();
        const bool is_last = places_[i].part.use_count() == 1;
        places_[i] = {};
        if (neighbours_only_ && is_last) {
            lose(i, part);
        }
        std::uint64_t wrong = 0;
        const std::size_t near = 40;
        for (std::size_t k = i - std::min(i, near); k < std::min(size(), i + near); ++k) {
            if (places_[k].part) {
                ends_of(k, [&](std::byte& byte) { wrong += byte == value(k) ? 0U : 1U; });
            }
        }
        return wrong;
    }

private:
    static std::byte value(std::size_t i) { return static_cast<std::byte>(1 + i % 255); }

    // Pages are lost whole, so the ends of a stretch show it.
    template <typename Visit>
    void ends_of(std::size_t i, Visit visit) {
        const std::uint64_t bytes = stretches_[i].bytes;
        const std::uint64_t end = std::min(bytes, kPage);
        std::for_each(data_[i], data_[i] + end, visit);
        std::for_each(data_[i] + std::max(end, bytes - end), data_[i] + bytes, visit);
    }

    // The handicap: a page goes when neither neighbour of the part is in use, as it once did.
    void lose(std::size_t i, std::span<std::byte> part) {
        const auto in_use = [&](std::size_t k) { return k < size() && places_[k].part != nullptr; };
        const auto of_part = [&](std::size_t k) {
            return k < size() && data_[k] >= part.data() && data_[k] < part.data() + part.size();
        };
        std::size_t before = i;
        std::size_t behind = i;
        while (of_part(before)) {
            --before;  // past 0 it is larger than any
        }
        while (of_part(behind)) {
            ++behind;
        }
        const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
        const std::uintptr_t end =
            behind < size() ? reinterpret_cast<std::uintptr_t>(data_[behind]) : begin + part.size();
        const std::uintptr_t first =
            in_use(before) ? base::align_up(begin, kPage) : base::align_down(begin, kPage);
        const std::uintptr_t last =
            in_use(behind) ? base::align_down(end, kPage) : base::align_up(end, kPage);
        if (first < last) {
            ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
        }
    }

    std::vector<memory::Stretch> stretches_;
    bool neighbours_only_;
    std::vector<memory::FreshMemory::Place> places_;
    std::vector<std::byte*> data_;
};

}  // namespace

void pages(const Arguments& arguments, Figures& figures) {
    const std::uint64_t count = arguments.number("count");
    const bool neighbours_only = arguments.handicap("direct_neighbours");
    const std::uint64_t seed = arguments.number("seed", std::random_device()());
    std::mt19937_64 random(seed);
    std::uint64_t wrong = 0;
    std::uint64_t freed = 0;
    std::uint64_t loads = 0;
    while (freed < count) {
        Load load(random, neighbours_only);
        ++loads;
        std::vector<std::size_t> order(load.size());
        for (std::size_t i = 0; i < order.size(); ++i) {
            order[i] = i;
        }
        std::shuffle(order.begin(), order.end(), random);
        for (const std::size_t i : order) {
            wrong += load.free(i);
            if (random() % 32 == 0) {  // where parts of small loads go
                value_of(memory::FreshMemory::make(std::vector<memory::Stretch>{{0, kPartBytes}}));
            }
        }
        freed += order.size();
    }
    figures.set("value", wrong);
    figures.set("operations", freed);
    figures.set("loads", loads);
    figures.set("seed", seed);
}

}  // namespace penstock::benchmarks
