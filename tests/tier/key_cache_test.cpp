// SPDX-License-Identifier: Apache-2.0
// The cache of rows: whatever is asked, hinted or fails, a slot that is read keeps its row, and a
// hit has the right one.
#include "tier/cache/key_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace penstock::tier {
namespace {

using Ids = std::vector<std::uint64_t>;
using Places = std::vector<KeyPlace>;

constexpr std::array kAllPolicies{RowPolicy::kStatic, RowPolicy::kClock, RowPolicy::kS3Fifo,
                                  RowPolicy::kWindow};

Places look_up(KeyCache& cache, const Ids& ids, std::uint64_t hint = kNoHint) {
    Places places(ids.size());
    cache.lookup(ids, places, hint);
    return places;
}

std::uint64_t hint_rows(KeyCache& cache, const Ids& ids) {
    return cache.hint(ids);
}

// A gather that succeeds. How many of its rows were in memory.
std::size_t gather(KeyCache& cache, const Ids& ids, std::uint64_t hint = kNoHint) {
    const Places places = look_up(cache, ids, hint);
    cache.commit(places);
    cache.release(places);
    return static_cast<std::size_t>(
        std::count_if(places.begin(), places.end(),
                      [](const KeyPlace& place) { return place.state == KeyState::kHit; }));
}

Ids some_ids(std::mt19937_64& random, std::size_t count, std::uint64_t below) {
    std::set<std::uint64_t> ids;
    while (ids.size() < count) {
        ids.insert(std::min(random() % below, random() % below));  // low ones more often
    }
    Ids out(ids.begin(), ids.end());
    std::shuffle(out.begin(), out.end(), random);
    return out;
}

Ids from_to(std::uint64_t begin, std::uint64_t end) {
    Ids ids(end - begin);
    std::iota(ids.begin(), ids.end(), begin);
    return ids;
}

// ---- any sequence of calls, against a map

struct Model {
    struct Slot {
        std::uint64_t row = 0;
        int pins = 0;
        bool there = false;
        bool failed = false;
    };
    std::map<std::uint32_t, Slot> slots;
    struct Gather {
        Ids ids;
        Places places;
    };
    std::vector<Gather> gathers;

    void look_up(const Ids& ids, const Places& places, std::uint32_t count) {
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const KeyPlace& place = places[i];
            if (place.slot == kNoSlot) {
                EXPECT_EQ(place.state, KeyState::kRead);
                continue;
            }
            ASSERT_LT(place.slot, count);
            Slot& slot = slots[place.slot];
            if (place.state == KeyState::kRead) {
                EXPECT_EQ(slot.pins, 0) << "a slot that is read was given away";
                slot = {ids[i], 1, false, false};
                for (const auto& [number, other] : slots) {
                    EXPECT_TRUE(number == place.slot || other.row != ids[i] || other.failed ||
                                (!other.there && other.pins == 0))
                        << "a row has two slots";
                }
            } else {
                EXPECT_EQ(slot.row, ids[i]);
                EXPECT_EQ(slot.there, place.state == KeyState::kHit);
                EXPECT_FALSE(slot.failed);
                ++slot.pins;
            }
        }
        gathers.push_back({ids, places});
    }
    void commit(const Gather& gather) {
        for (const KeyPlace& place : gather.places) {
            if (place.slot != kNoSlot && place.state == KeyState::kRead) {
                slots[place.slot].there = true;
            }
        }
    }
    void release(const Gather& gather) {
        for (const KeyPlace& place : gather.places) {
            if (place.slot != kNoSlot) {
                Slot& slot = slots[place.slot];
                slot.failed |= place.state == KeyState::kRead && !slot.there;
                --slot.pins;
            }
        }
    }
};

class RowCacheCalls : public testing::TestWithParam<RowPolicy> {};

TEST_P(RowCacheCalls, AreThoseOfAMap) {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        const auto count = static_cast<std::uint32_t>(random() % 200);
        KeyCache cache(count, GetParam());
        Model model;
        for (int step = 0; step < 300 && !HasFailure(); ++step) {
            const Ids ids = some_ids(random, random() % 40, 400);
            switch (random() % 6) {
                case 0:
                    static_cast<void>(hint_rows(cache, ids));
                    break;
                case 1: {
                    Places places(ids.size());
                    cache.preload(ids, places);
                    for (const KeyPlace& place : places) {
                        EXPECT_EQ(place.state, KeyState::kRead);
                    }
                    model.look_up(ids, places, count);
                    break;
                }
                case 2:
                case 3:
                    model.look_up(ids, look_up(cache, ids, random() % 8), count);
                    break;
                default:
                    if (!model.gathers.empty()) {
                        const std::size_t which = random() % model.gathers.size();
                        const Model::Gather gather = model.gathers[which];
                        model.gathers.erase(model.gathers.begin() +
                                            static_cast<std::ptrdiff_t>(which));
                        if (random() % 8 != 0) {
                            cache.commit(gather.places);
                            model.commit(gather);
                        }
                        cache.release(gather.places);
                        model.release(gather);
                    }
            }
            for (const Model::Gather& gather : model.gathers) {
                for (const KeyPlace& place : gather.places) {
                    if (place.slot != kNoSlot) {
                        const Model::Slot& slot = model.slots[place.slot];
                        EXPECT_EQ(cache.arrival(place.slot), slot.there    ? Arrival::kThere
                                                             : slot.failed ? Arrival::kFailed
                                                                           : Arrival::kArriving);
                    }
                }
            }
        }
    }
}

// Slots are memory that is read and written without a lock, as gathers do: a sanitizer sees it.
TEST_P(RowCacheCalls, ByManyThreadsGiveEachItsRows) {
    constexpr std::uint32_t kSlots = 96;
    KeyCache cache(kSlots, GetParam());
    std::vector<std::uint64_t> memory(kSlots);
    std::atomic<std::uint64_t> wrong{0};
    const auto work = [&](std::uint64_t seed) {
        std::mt19937_64 random(seed);
        for (int round = 0; round < 400; ++round) {
            const Ids ids = some_ids(random, 1 + random() % 60, 300);
            if (random() % 4 == 0) {
                static_cast<void>(hint_rows(cache, ids));
            }
            const Places places = look_up(cache, ids);
            const bool fails = random() % 10 == 0;
            for (std::size_t i = 0; i < ids.size() && !fails; ++i) {
                if (places[i].state == KeyState::kRead && places[i].slot != kNoSlot) {
                    memory[places[i].slot] = ids[i];
                }
            }
            if (!fails) {
                cache.commit(places);
            }
            for (std::size_t i = 0; i < ids.size(); ++i) {
                const bool is_there =
                    places[i].state == KeyState::kHit ||
                    (places[i].state == KeyState::kArriving &&
                     cache.wait(places[i].slot, std::chrono::microseconds(50)) == Arrival::kThere);
                if (is_there && memory[places[i].slot] != ids[i]) {
                    ++wrong;
                }
            }
            cache.release(places);
        }
    };
    std::vector<std::thread> threads;
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        threads.emplace_back(work, seed);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0U);
    // Nothing is pinned any more: what is asked for next finds a slot.
    const Places places = look_up(cache, {1'000'000});
    EXPECT_TRUE(places[0].slot != kNoSlot || GetParam() == RowPolicy::kStatic ||
                GetParam() == RowPolicy::kWindow);
    cache.release(places);
}

TEST_P(RowCacheCalls, WithAllSlotsPinnedReadPastTheCache) {
    KeyCache cache(16, GetParam());
    const Places held = look_up(cache, from_to(0, 16));
    cache.commit(held);
    const Places more = look_up(cache, from_to(100, 140));
    for (const KeyPlace& place : more) {
        EXPECT_EQ(place.slot, kNoSlot);
    }
    EXPECT_EQ(cache.stats().pinned, 40U);
    cache.release(more);
    cache.release(held);
    EXPECT_EQ(gather(cache, from_to(0, 16)), 16U);
}

TEST_P(RowCacheCalls, OfACacheWithoutSlots) {
    KeyCache cache(0, GetParam());
    EXPECT_EQ(hint_rows(cache, {}), kNoHint);
    EXPECT_EQ(hint_rows(cache, from_to(0, 5)), kNoHint);
    EXPECT_EQ(gather(cache, from_to(0, 50)), 0U);
    EXPECT_EQ(gather(cache, {}), 0U);
    EXPECT_EQ(cache.stats().passed_by, 50U);
}

TEST_P(RowCacheCalls, TakeAtMost32BytesASlot) {
    for (const std::uint32_t slots : {1000U, 65'536U, 100'001U}) {
        const KeyCache cache(slots, GetParam());
        EXPECT_LE(cache.metadata_bytes(), 32U * slots);
    }
}

// A row that comes again in the same call is no error of the caller's that could do harm.
TEST_P(RowCacheCalls, WithARowTwice) {
    KeyCache cache(8, GetParam());
    const Places places = look_up(cache, {5, 5, 5});
    EXPECT_EQ(places[0].state, KeyState::kRead);
    EXPECT_EQ(places[1].state, KeyState::kArriving);
    cache.commit(places);
    EXPECT_EQ(cache.arrival(places[2].slot), Arrival::kThere);
    cache.release(places);
    EXPECT_EQ(gather(cache, {5}), 1U);
}

// 65,536 gathers of one row: the last reads past the cache instead of counting from 0 again.
TEST_P(RowCacheCalls, MorePinsThanACounterHas) {
    KeyCache cache(4, GetParam());
    const Places first = look_up(cache, {1});
    cache.commit(first);
    Places places(65'534);
    for (KeyPlace& place : places) {
        cache.lookup(Ids{1}, {&place, 1});
    }
    const Places last = look_up(cache, {1});
    EXPECT_EQ(last[0].slot, kNoSlot);
    cache.release(last);
    cache.release(places);
    cache.release(first);
    EXPECT_EQ(gather(cache, {1}), 1U);
}

INSTANTIATE_TEST_SUITE_P(Policies, RowCacheCalls, testing::ValuesIn(kAllPolicies),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

// ---- failures, arrivals

TEST(KeyCache, ReportsAFailedReadToThoseWhoFoundTheRowArriving) {
    KeyCache cache(4, RowPolicy::kClock);
    const Places first = look_up(cache, {7});
    const Places second = look_up(cache, {7});
    ASSERT_EQ(second[0].state, KeyState::kArriving);
    EXPECT_EQ(cache.wait(second[0].slot, std::chrono::milliseconds(1)), Arrival::kArriving);
    std::thread failing([&] { cache.release(first); });
    EXPECT_EQ(cache.wait(second[0].slot, std::chrono::nanoseconds::max()), Arrival::kFailed);
    failing.join();
    // The row may be read again at once, into another slot.
    const Places third = look_up(cache, {7});
    EXPECT_EQ(third[0].state, KeyState::kRead);
    EXPECT_NE(third[0].slot, second[0].slot);
    cache.commit(third);
    cache.release(third);
    EXPECT_EQ(cache.arrival(second[0].slot), Arrival::kFailed);
    cache.release(second);
    EXPECT_EQ(gather(cache, {7}), 1U);
    EXPECT_EQ(cache.stats().failed, 1U);
    // The slot that failed is free: four rows fit.
    gather(cache, {8, 9, 10});
    EXPECT_EQ(gather(cache, {7, 8, 9, 10}), 4U);
}

// ---- policies

TEST(KeyCache, ClockGivesASecondChance) {
    KeyCache cache(4, RowPolicy::kClock);
    gather(cache, from_to(0, 4));
    gather(cache, {2});
    gather(cache, {10, 11, 12});
    EXPECT_TRUE(cache.find(2));
    gather(cache, {13, 14, 15});
    EXPECT_FALSE(cache.find(2));
}

TEST(KeyCache, StaticKeepsWhatWasPreloaded) {
    KeyCache cache(8, RowPolicy::kStatic);
    const Ids hot = from_to(100, 106);
    Places places(hot.size());
    cache.preload(hot, places);
    cache.commit(places);
    cache.release(places);
    EXPECT_EQ(gather(cache, from_to(0, 50)), 0U);
    EXPECT_EQ(gather(cache, hot), 6U);
    EXPECT_EQ(gather(cache, {0, 1, 2}), 2U);  // the first of them took the two free slots
    EXPECT_EQ(cache.stats().evicted, 0U);
}

TEST(KeyCache, S3FifoKeepsRowsThatCameAgainThroughAScan) {
    KeyCache cache(60, RowPolicy::kS3Fifo);
    for (int round = 0; round < 4; ++round) {
        gather(cache, from_to(0, 20));
    }
    for (std::uint64_t row = 1000; row < 3000; row += 10) {
        gather(cache, from_to(row, row + 10));
    }
    EXPECT_EQ(gather(cache, from_to(0, 20)), 20U);
}

TEST(KeyCache, WindowEvictsTheFarthestAndPassesByWhatComesLater) {
    KeyCache cache(3, RowPolicy::kWindow);
    hint_rows(cache, {0, 1, 2});
    hint_rows(cache, {9});
    hint_rows(cache, {0, 3});
    hint_rows(cache, {1});
    hint_rows(cache, {2});
    EXPECT_EQ(gather(cache, {0, 1, 2}), 0U);
    gather(cache, {9});  // never again: it is passed by, for all others come again
    EXPECT_FALSE(cache.find(9));
    EXPECT_EQ(gather(cache, {0, 3}), 1U);  // 3 never comes again either, nor does 0
    EXPECT_EQ(gather(cache, {1}), 1U);
    EXPECT_EQ(gather(cache, {2}), 1U);
    hint_rows(cache, {20, 21, 22});
    hint_rows(cache, {22});
    hint_rows(cache, {21});
    hint_rows(cache, {20});
    hint_rows(cache, {30});
    hint_rows(cache, {30, 21});
    gather(cache, {20, 21, 22});
    for (const std::uint64_t row : {22, 21, 20}) {
        EXPECT_EQ(gather(cache, {row}), 1U) << row;
    }
    // 30 comes again with 21: it takes the slot of one that does not come again.
    gather(cache, {30});
    EXPECT_TRUE(cache.find(30));
    EXPECT_TRUE(cache.find(21));
    EXPECT_EQ(gather(cache, {30, 21}), 2U);
}

TEST(KeyCache, FindsTheHintOfAGatherByItsRows) {
    KeyCache cache(100, RowPolicy::kWindow);
    std::mt19937_64 random(5);
    std::vector<Ids> batches;
    for (int i = 0; i < 40; ++i) {
        batches.push_back(some_ids(random, 50, 10'000));
    }
    for (std::size_t i = 0; i < batches.size(); ++i) {
        for (std::size_t ahead = i == 0 ? 0 : i + 7; ahead < std::min(i + 8, batches.size());
             ++ahead) {
            ASSERT_NE(hint_rows(cache, batches[ahead]), kNoHint);
        }
        std::shuffle(batches[i].begin(), batches[i].end(), random);
        gather(cache, batches[i]);
        ASSERT_EQ(cache.stats().hints_used, i + 1);
    }
    EXPECT_EQ(cache.stats().hints_dropped, 0U);
}

TEST(KeyCache, TakesGathersOutOfTheOrderOfTheirHints) {
    KeyCache cache(1000, RowPolicy::kWindow);
    std::vector<Ids> batches;
    for (std::uint64_t i = 0; i < 6; ++i) {
        batches.push_back(from_to(i * 100, i * 100 + 50));
        hint_rows(cache, batches.back());
    }
    for (const std::size_t i : {1, 0, 3, 2, 5, 4}) {
        gather(cache, batches[i]);
    }
    EXPECT_EQ(cache.stats().hints_used, 6U);
    EXPECT_EQ(cache.stats().hints_dropped, 0U);
}

// Hints that never come true hold the cache for a while, and no longer.
TEST(KeyCache, DropsHintsThatDoNotComeTrue) {
    KeyCache cache(50, RowPolicy::kWindow);
    for (std::uint64_t i = 0; i < 31; ++i) {
        EXPECT_NE(hint_rows(cache, from_to(i * 10, i * 10 + 10)), kNoHint);
    }
    EXPECT_EQ(hint_rows(cache, {1}), kNoHint) << "32 at once";
    gather(cache, from_to(0, 50));
    for (std::uint64_t i = 0; i < 40; ++i) {
        gather(cache, from_to(5000, 5020));
    }
    EXPECT_EQ(cache.stats().hints_dropped, 31U - cache.stats().hints_used);
    EXPECT_EQ(cache.hint_bytes(), 0U);
    EXPECT_NE(hint_rows(cache, {1}), kNoHint);
    EXPECT_EQ(gather(cache, from_to(5000, 5020)), 20U);
    // Those before a hint that came true go too, in time.
    for (std::uint64_t i = 0; i < 12; ++i) {
        hint_rows(cache, from_to(9000 + i * 10, 9005 + i * 10));
    }
    gather(cache, from_to(9110, 9115));
    EXPECT_GE(cache.stats().hints_dropped + cache.stats().hints_used, 31U + 4U);
}

TEST(KeyCache, RefusesHintsPastTheirMemory) {
    KeyCache cache(64, RowPolicy::kWindow, 1 << 20);
    EXPECT_EQ(hint_rows(cache, from_to(0, 1'000'000)), kNoHint);
    std::uint64_t taken = 0;
    for (std::uint64_t i = 0; i < 100; ++i) {
        taken += hint_rows(cache, from_to(i * 5000, i * 5000 + 5000)) != kNoHint ? 1U : 0U;
    }
    EXPECT_GT(taken, 2U);
    EXPECT_LT(taken, 31U);
    EXPECT_LE(cache.hint_bytes(), 1U << 20);
    EXPECT_EQ(cache.stats().hints_refused, 101 - taken);
    cache.drop_hints();
    EXPECT_NE(hint_rows(cache, from_to(0, 5000)), kNoHint);
}

// A window of batches that are each larger than the cache.
TEST(KeyCache, ReadsThroughWhereTheWindowIsLargerThanTheCache) {
    KeyCache cache(64, RowPolicy::kWindow);
    std::mt19937_64 random(3);
    std::vector<Ids> batches;
    for (int i = 0; i < 60; ++i) {
        batches.push_back(some_ids(random, 300, 2000));
    }
    std::size_t hits = 0;
    for (std::size_t i = 0; i < batches.size(); ++i) {
        for (std::size_t ahead = i == 0 ? 0 : i + 9; ahead < std::min(i + 10, batches.size());
             ++ahead) {
            hint_rows(cache, batches[ahead]);
        }
        hits += gather(cache, batches[i]);
    }
    EXPECT_GT(hits, 60U * 20U);
}

// A hundred thousand hints: numbers and bits come round again.
TEST(KeyCache, GoesOnThroughManyHints) {
    KeyCache cache(8, RowPolicy::kWindow);
    for (std::uint64_t i = 0; i < 100'000; ++i) {
        ASSERT_NE(hint_rows(cache, {i, i + 1}), kNoHint);
        gather(cache, {i, i + 1});
    }
    EXPECT_EQ(cache.stats().hints_used, 100'000U);
    EXPECT_EQ(cache.hint_bytes(), 1024U * 16U);
}

TEST(KeyCache, NamesOfPolicies) {
    for (const RowPolicy policy : kAllPolicies) {
        EXPECT_EQ(row_policy(name_of(policy)), policy);
    }
    EXPECT_THROW(static_cast<void>(row_policy("windows")), Error);
    EXPECT_THROW(static_cast<void>(row_policy("")), Error);
}

}  // namespace
}  // namespace penstock::tier
