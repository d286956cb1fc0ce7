// SPDX-License-Identifier: Apache-2.0
// What fuzz/plan_fuzz.cpp checks, without its fuzzer: the corpus, and random inputs by seed.
#include "../fuzz/plan_check.hpp"
#include "support/seeds.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace penstock::fuzz {
namespace {

std::vector<std::uint8_t> random_input(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint8_t> input(random() % 600);
    for (std::uint8_t& byte : input) {
        byte = static_cast<std::uint8_t>(random() % 3 == 0 ? 0 : random());
    }
    return input;
}

TEST(PlanCorpus, RandomInputs) {
    const std::uint64_t count = 100 * support::engine_seeds(20);
    for (std::uint64_t seed = 1; seed <= count; ++seed) {
        ASSERT_EQ(PlanCheck(random_input(seed)).run(), "") << "seed " << seed;
    }
}

TEST(PlanCorpus, EveryInputOfTheCorpus) {
    const std::filesystem::path folder =
        std::filesystem::path(PENSTOCK_SOURCE_DIR) / "fuzz/corpus/plan";
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        std::ifstream file(entry.path(), std::ios::binary);
        const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
        const std::vector<std::uint8_t> input(bytes.begin(), bytes.end());
        EXPECT_EQ(PlanCheck(input).run(), "") << entry.path().filename();
        ++count;
    }
    EXPECT_GT(count, 0U);
}

}  // namespace
}  // namespace penstock::fuzz
