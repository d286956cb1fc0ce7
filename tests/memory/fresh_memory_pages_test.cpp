// SPDX-License-Identifier: Apache-2.0
// Which pages a load gives back: those that no part in use touches, whatever the sizes of the parts
// and the order in which they go. A model knows of each page which parts touch it.
#include "base/align.hpp"
#include "memory/fresh_memory.hpp"
#include "memory/lasting_memory.hpp"
#include "support/same_bytes.hpp"
#include "support/seeds.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::memory {
namespace {

constexpr bool kLarge = false;  // of_small_load

// A load of which each stretch has bytes of its own, and which lets go of them one by one.
class Loaded {
public:
    Loaded(const std::vector<Stretch>& stretches, bool of_small_load, std::uint64_t seed)
        : stretches_(stretches), seed_(seed) {
        const FreshMemory memory = FreshMemory::make(stretches, of_small_load).value();
        for (std::size_t i = 0; i < stretches.size(); ++i) {
            places_.push_back(memory.place(i));
            addresses_.push_back(memory.address(i));
            if (addresses_[i] != nullptr) {
                std::memset(addresses_[i], value(i), stretches[i].bytes);
                left_.push_back(i);
            }
        }
    }

    [[nodiscard]] const std::vector<std::size_t>& left() const { return left_; }
    void free(std::size_t stretch) {
        places_[stretch] = {};
        left_.erase(std::find(left_.begin(), left_.end(), stretch));
    }
    void free_one(std::mt19937_64& random) { free(left_[random() % left_.size()]); }

    // How many of those that are left have lost bytes. Whole pages are lost, so that the ends show
    // it: `all` looks at every byte.
    [[nodiscard]] std::uint64_t wrong_stretches(bool all) const {
        constexpr std::size_t kEnd = 2 * base::kPageBytes;
        std::uint64_t wrong = 0;
        for (const std::size_t i : left_) {
            const std::span<const std::byte> bytes(addresses_[i], stretches_[i].bytes);
            const std::byte right{value(i)};
            const bool kept = all || bytes.size() <= 2 * kEnd
                                  ? support::all_are(bytes, right)
                                  : support::all_are(bytes.first(kEnd), right) &&
                                        support::all_are(bytes.last(kEnd), right);
            wrong += kept ? 0U : 1U;
        }
        return wrong;
    }

    // Pages that are in memory though all that touches them is gone. Before the first stretch and
    // behind the last of a load there is nothing to look at.
    [[nodiscard]] std::uint64_t pages_kept_for_nobody() const {
        if (left_.empty()) {
            return 0;  // the mapping is another load's by now, or is kept for one
        }
        const auto page_of = [](const std::byte* at) {
            return reinterpret_cast<std::uintptr_t>(at) / base::kPageBytes;
        };
        std::vector<std::pair<std::uintptr_t, std::uintptr_t>> used;  // pages of parts in use
        for (const std::size_t i : left_) {
            const std::span<std::byte> part = places_[i].part->bytes();
            // The next part begins a page and a stretch later at most, and a part has all up to it.
            used.emplace_back(page_of(part.data()), page_of(part.data() + part.size() - 1) + 1);
        }
        std::uint64_t kept = 0;
        for (std::size_t i = 0; i < stretches_.size(); ++i) {
            if (addresses_[i] == nullptr || stretches_[i].bytes == 0) {
                continue;
            }
            const std::uintptr_t last = page_of(addresses_[i] + stretches_[i].bytes - 1);
            for (std::uintptr_t page = page_of(addresses_[i]); page <= last; ++page) {
                const bool in_use = std::any_of(used.begin(), used.end(), [&](const auto& pages) {
                    return page >= pages.first && page <= pages.second;
                });
                kept += !in_use && is_there(page) ? 1U : 0U;
            }
        }
        return kept;
    }

private:
    [[nodiscard]] static bool is_there(std::uintptr_t page) {
        unsigned char there = 0;
        return ::mincore(reinterpret_cast<void*>(page * base::kPageBytes), base::kPageBytes,
                         &there) == 0 &&
               (there & 1U) != 0;
    }
    [[nodiscard]] unsigned char value(std::size_t i) const {
        return static_cast<unsigned char>(1 + (seed_ * 31 + i * 7) % 255);
    }

    std::vector<Stretch> stretches_;
    std::uint64_t seed_;
    std::vector<FreshMemory::SharePlace> places_;
    std::vector<std::byte*> addresses_;
    std::vector<std::size_t> left_;
};

// Parts that are kept for the next load go at that load.
void load_another() {
    EXPECT_TRUE(FreshMemory::make(std::vector<Stretch>{{0, base::kMiB}}));
}

// weight, bias, weight: as files of safetensors and of torch.save have them.
std::vector<Stretch> one_after_the_other(const std::vector<std::uint64_t>& sizes,
                                         std::uint64_t at) {
    std::vector<Stretch> stretches;
    for (const std::uint64_t bytes : sizes) {
        stretches.push_back({at, bytes});
        at += bytes;
    }
    return stretches;
}

TEST(FreshMemoryPages, APageOfThreePartsStaysForEachOfThem) {
    for (const bool small : {true, kLarge}) {
        for (const std::uint64_t bias : {1, 512, 3000, 4095, 4096, 4097}) {
            std::array<std::size_t, 3> order{0, 1, 2};
            do {
                const auto stretches = one_after_the_other({base::kMiB, bias, base::kMiB}, 744);
                Loaded loaded(stretches, small, bias);
                for (std::size_t k = 0; k < 2; ++k) {
                    loaded.free(order.at(k));
                    load_another();
                    ASSERT_EQ(loaded.wrong_stretches(true), 0U)
                        << "bias " << bias << ", freed " << order[0] << " and " << order[1];
                    ASSERT_EQ(loaded.pages_kept_for_nobody(), 0U);
                }
            } while (std::next_permutation(order.begin(), order.end()));
        }
    }
}

std::uint64_t random_size(std::mt19937_64& random) {
    switch (random() % 6) {
        case 0:
            return random() % 3;  // 0: an empty tensor
        case 1:
            return 1 + random() % 8;
        case 2:
            return 1 + random() % (2 * base::kPageBytes);
        case 3:
            return base::kPageBytes * (1 + random() % 3) + random() % 3 - 1;
        case 4:
            return base::kMiB - 2 + random() % 4;
        default:
            return base::kMiB + random() % (base::kMiB / 2);
    }
}

std::vector<Stretch> random_layout(std::mt19937_64& random) {
    std::vector<Stretch> stretches;
    std::uint64_t at = random() % (3 * base::kPageBytes);
    const std::uint64_t count = 1 + random() % 24;
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t bytes = random_size(random);
        stretches.push_back({at, bytes});
        at += bytes;
        if (random() % 3 == 0) {
            at += random() % 2 == 0 ? random() % 64 : random() % (3 * base::kPageBytes);
        }
    }
    std::shuffle(stretches.begin(), stretches.end(), random);
    return stretches;
}

TEST(FreshMemoryPages, NoByteInUseIsLostWhateverGoesInWhateverOrder) {
    const std::uint64_t seeds = support::engine_seeds(20);
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        std::mt19937_64 random(seed);
        std::vector<Loaded> loads;
        for (int step = 0; step < 60; ++step) {
            if (loads.size() < 3 || random() % 12 == 0) {
                loads.emplace_back(random_layout(random), random() % 2 == 0, random());
            }
            Loaded& loaded = loads[random() % loads.size()];
            if (!loaded.left().empty()) {
                loaded.free_one(random);
            }
            for (const Loaded& each : loads) {
                ASSERT_EQ(each.wrong_stretches(false), 0U) << "seed " << seed << ", step " << step;
            }
        }
        load_another();
        for (const Loaded& each : loads) {
            ASSERT_EQ(each.wrong_stretches(true), 0U) << "seed " << seed;
            ASSERT_EQ(each.pages_kept_for_nobody(), 0U) << "seed " << seed;
        }
    }
}

// Parts that go together: each may be the last of a page, and none may take it from a third.
TEST(FreshMemoryPages, PartsMayGoInSeveralThreadsAtOnce) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        std::mt19937_64 random(seed);
        std::vector<Stretch> stretches;
        std::uint64_t at = random() % base::kPageBytes;
        for (int i = 0; i < 24; ++i) {
            const std::uint64_t bytes =
                i % 2 == 0 ? base::kMiB + random() % 64 : 1 + random() % 900;
            stretches.push_back({at, bytes});
            at += bytes;
        }
        const bool small = seed % 2 == 0;
        FreshMemory memory = FreshMemory::make(stretches, small).value();
        std::array<std::vector<FreshMemory::SharePlace>, 3> places;
        std::vector<std::pair<std::byte*, std::uint64_t>> stay;
        for (std::size_t i = 0; i < stretches.size(); ++i) {
            std::memset(memory.address(i), 7, stretches[i].bytes);
            const std::size_t owner = random() % places.size();
            if (owner == 2) {
                stay.emplace_back(memory.address(i), stretches[i].bytes);
            }
            places.at(owner).push_back(memory.place(i));
        }
        { const FreshMemory gone = std::exchange(memory, FreshMemory::make({}).value()); }
        std::thread other([&] {
            for (FreshMemory::SharePlace& place : places[0]) {
                place = {};
            }
        });
        for (FreshMemory::SharePlace& place : places[1]) {
            place = {};
        }
        load_another();
        other.join();
        load_another();
        for (const auto& [data, bytes] : stay) {
            ASSERT_TRUE(
                std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{7}; }))
                << "seed " << seed;
        }
    }
}

TEST(FreshMemoryPages, AKernelNeverHoldsWhatIsGivenBackInPart) {
    const FreshMemory memory =
        FreshMemory::make(one_after_the_other({2 * base::kMiB, 100, 2 * base::kMiB}, 0)).value();
    for (std::size_t i = 0; i < memory.size(); ++i) {
        EXPECT_FALSE(LastingMemory::overlaps(memory.place(i).part->bytes()));
    }
    const Block block = Block::make(3 * base::kPageBytes, {.lasting = true}).value();
    std::byte* const data = block.data();
    EXPECT_TRUE(LastingMemory::overlaps({data, 1}));
    EXPECT_TRUE(LastingMemory::overlaps({data + 3 * base::kPageBytes - 1, 1}));
    EXPECT_TRUE(LastingMemory::overlaps({data - 1, 2}));
    EXPECT_FALSE(LastingMemory::overlaps({data - 1, 1}));
    EXPECT_FALSE(LastingMemory::overlaps({data + 3 * base::kPageBytes, 1}));
    EXPECT_FALSE(LastingMemory::overlaps({}));
}

}  // namespace
}  // namespace penstock::memory
