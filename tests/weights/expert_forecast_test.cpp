// SPDX-License-Identifier: Apache-2.0
// Guesses of what the next layer needs, by traces of routers with a habit and without one. The
// traces are also what says whether reading ahead is worth it: the misses that a layer waits for.
#include "weights/experts/expert_forecast.hpp"

#include "weights/experts/expert_cache.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace penstock::weights {
namespace {

constexpr std::size_t kLayers = 8;
constexpr std::size_t kExperts = 32;
constexpr std::size_t kChosen = 4;

// Tokens are of one of eight topics, and each layer has favourites for each topic.
class Router {
public:
    explicit Router(double habit) : habit_(habit) {
        std::vector<std::size_t> all(kExperts);
        std::iota(all.begin(), all.end(), std::size_t{0});
        for (auto& layer : favourites_) {
            for (std::vector<std::size_t>& one : layer) {
                std::shuffle(all.begin(), all.end(), random_);
                one.assign(all.begin(), all.begin() + kChosen);
            }
        }
    }
    void next_token() {
        if (random_() % 10 < 3) {
            topic_ = random_() % kTopics;
        }
    }
    [[nodiscard]] std::vector<std::size_t> choose(std::size_t layer) {
        std::vector<std::size_t> out;
        while (out.size() < kChosen) {
            const bool is_habit = static_cast<double>(random_() % 1000) < 1000 * habit_;
            const std::size_t one =
                is_habit ? favourites_[layer][topic_][random_() % kChosen] : random_() % kExperts;
            if (std::find(out.begin(), out.end(), one) == out.end()) {
                out.push_back(one);
            }
        }
        return out;
    }

private:
    static constexpr std::size_t kTopics = 8;
    double habit_;
    std::mt19937_64 random_{11};
    std::size_t topic_ = 0;
    std::vector<std::size_t> favourites_[kLayers][kTopics];
};

struct Counted {
    double misses = 0;  // that a layer waits for, a token
    double guesses = 0;
    double right = 0;  // of them
};

// A run of tokens with a cache of a third of all experts, without files. Guesses arrive in time.
Counted run(double habit, bool reads_likely) {
    constexpr std::size_t kTokens = 1500;
    Router router(habit);
    ExpertCache cache(kLayers * kExperts / 3, std::vector<std::size_t>(kLayers, kExperts));
    ExpertForecast forecast(std::vector<std::size_t>(kLayers, kExperts));
    std::vector<std::size_t> likely;
    Counted out;
    for (std::size_t token = 0; token < kTokens; ++token) {
        router.next_token();
        for (std::size_t layer = 0; layer < kLayers; ++layer) {
            const std::vector<std::size_t> chosen = router.choose(layer);
            forecast.learn(layer, chosen);
            for (const std::size_t one : likely) {
                out.right += std::count(chosen.begin(), chosen.end(), one) != 0 ? 1 : 0;
            }
            std::vector<std::size_t> held;
            for (const bool is_first : {true, false}) {  // those that are there are held first
                for (const std::size_t number : chosen) {
                    std::optional<std::size_t> slot = cache.find({layer, number});
                    if (is_first) {
                        cache.count({layer, number});
                    } else if (!slot) {
                        slot = cache.take({layer, number});
                        ++out.misses;
                    }
                    if (slot && (is_first || std::count(held.begin(), held.end(), *slot) == 0)) {
                        cache.hold(*slot);
                        held.push_back(*slot);
                    }
                }
            }
            const std::size_t next = forecast.next_layer();
            std::vector<bool> known(kExperts);
            for (std::size_t number = 0; number < kExperts; ++number) {
                known[number] = cache.find({next, number}).has_value();
            }
            likely = forecast.likely(known);
            if (!reads_likely) {
                likely.clear();
            }
            for (const std::size_t number : likely) {
                static_cast<void>(cache.take({next, number}, layer));
            }
            out.guesses += static_cast<double>(likely.size());
            for (const std::size_t slot : held) {
                cache.release(slot);
            }
        }
    }
    for (double* const one : {&out.misses, &out.guesses, &out.right}) {
        *one /= kTokens;
    }
    return out;
}

TEST(ExpertForecast, AHabitSavesWaitingAndItsLackCostsNothing) {
    for (const double habit : {0.0, 0.8, 0.95}) {
        const Counted without = run(habit, false);
        const Counted with = run(habit, true);
        const std::string figures = fmt::format(
            "habit {}: {:.2f} misses a token without guesses, {:.2f} with, of which "
            "{:.2f} were read and {:.2f} right",
            habit, without.misses, with.misses, with.guesses, with.right);
        RecordProperty(fmt::format("habit_{}", static_cast<int>(100 * habit)), figures);
        EXPECT_EQ(without.guesses, 0) << figures;
        EXPECT_LE(with.misses, 1.01 * without.misses) << figures;
        if (habit == 0) {
            EXPECT_LE(with.guesses, 0.01 * without.misses) << figures;
        }
        if (habit >= 0.8) {
            EXPECT_LE(with.misses, 0.8 * without.misses) << figures;
            EXPECT_GE(with.right, 0.5 * with.guesses) << figures;
        }
    }
}

TEST(ExpertForecast, OnlyWhatFollowedIsGuessedAndWhatIsKnownIsNot) {
    ExpertForecast forecast({8, 16, 8});
    const std::vector<std::size_t> one{1};
    const std::vector<std::size_t> two{5, 9};
    for (int pass = 0; pass < 40; ++pass) {
        forecast.learn(0, one);
        EXPECT_EQ(forecast.next_layer(), 1U);
        const std::vector<std::size_t> all = forecast.likely(std::vector<bool>(16));
        for (const std::size_t guess : all) {
            EXPECT_TRUE(guess == 5 || guess == 9) << guess;
        }
        EXPECT_EQ(all.size(), pass < 24 ? all.size() : 2U);
        forecast.learn(1, two);
        static_cast<void>(forecast.likely(std::vector<bool>(8)));
        forecast.learn(2, one);
        EXPECT_EQ(forecast.next_layer(), 0U);
        static_cast<void>(forecast.likely(std::vector<bool>(8)));
    }
    forecast.learn(0, one);
    std::vector<bool> known(16);
    known[5] = known[9] = true;
    EXPECT_TRUE(forecast.likely(known).empty());
    // A prompt chooses nearly all, and says nothing.
    forecast.learn(0, std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7});
    EXPECT_TRUE(forecast.likely(std::vector<bool>(16)).empty());
    // Another layer than the next one: a pass that ended early.
    forecast.learn(0, one);
    forecast.learn(2, one);
    forecast.learn(0, one);
    EXPECT_EQ(forecast.likely(std::vector<bool>(16)).size(), 2U);
}

}  // namespace
}  // namespace penstock::weights
