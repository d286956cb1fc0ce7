// SPDX-License-Identifier: Apache-2.0
#include "base/short_vector.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace penstock::base {
namespace {

using Shared = std::shared_ptr<int>;

std::vector<int> numbers(const ShortVector<Shared>& items) {
    std::vector<int> out;
    for (const Shared& item : items) {
        out.push_back(item ? *item : -1);
    }
    EXPECT_EQ(out.size(), items.size());
    EXPECT_EQ(items.empty(), out.empty());
    return out;
}

TEST(ShortVector, HasWhatAVectorHas) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        std::vector<int> expected;
        std::weak_ptr<int> any;
        {
            ShortVector<Shared> items;
            for (int step = 0; step < 30; ++step) {
                const int number = static_cast<int>(random() % 1000);
                switch (random() % 7) {
                    case 0:
                    case 1:
                    case 2: {
                        auto item = std::make_shared<int>(number);
                        any = item;
                        items.push_back(std::move(item));
                        expected.push_back(number);
                        break;
                    }
                    case 3: {
                        const std::size_t count = random() % 4;
                        items.resize(count);
                        expected.resize(count, -1);
                        break;
                    }
                    case 4: {
                        ShortVector<Shared> moved(std::move(items));
                        EXPECT_TRUE(items.empty());  // NOLINT: what was moved from is empty
                        items.push_back(std::make_shared<int>(-2));
                        items = std::move(moved);
                        break;
                    }
                    case 5:
                        items.reserve(random() % 5);
                        break;
                    default:
                        if (random() % 4 == 0) {
                            items.clear();
                            expected.clear();
                        }
                }
                ASSERT_EQ(numbers(items), expected);
                if (!expected.empty()) {
                    EXPECT_EQ(&items.front(), items.data());
                    EXPECT_EQ(&items.back(), &items[items.size() - 1]);
                }
            }
        }
        EXPECT_TRUE(any.expired());  // nothing is kept
    }
}

TEST(ShortVector, TakesAListAsItIs) {
    std::vector<Shared> list{std::make_shared<int>(1), std::make_shared<int>(2)};
    const Shared* const first = list.data();
    ShortVector<Shared> items(std::move(list));
    EXPECT_EQ(items.data(), first);
    EXPECT_EQ(numbers(items), (std::vector<int>{1, 2}));
    ShortVector<Shared> none{std::vector<Shared>()};
    EXPECT_TRUE(none.empty());
    none.push_back(std::make_shared<int>(3));
    none.push_back(std::make_shared<int>(4));
    EXPECT_EQ(numbers(none), (std::vector<int>{3, 4}));
}

TEST(ShortVector, ClearedItKeepsNothing) {
    const auto item = std::make_shared<int>(1);
    ShortVector<Shared> items{item};
    EXPECT_EQ(item.use_count(), 2);
    items.clear();
    EXPECT_EQ(item.use_count(), 1);
    items = ShortVector<Shared>{item, item, item};
    items.clear();
    EXPECT_EQ(item.use_count(), 1);
}

}  // namespace
}  // namespace penstock::base
