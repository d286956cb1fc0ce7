// SPDX-License-Identifier: Apache-2.0
#include "state/shared_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace penstock::state {
namespace {

using ByteNumbers = std::vector<std::uint64_t>;

// Every byte of every element.
ByteNumbers bytes_of(const ElementLayout& tensor) {
    ByteNumbers begins = {tensor.begin};
    for (const auto& [step, extent] : tensor.dimensions) {
        ByteNumbers more;
        for (std::uint64_t i = 0; i < extent; ++i) {
            for (const std::uint64_t begin : begins) {
                more.push_back(begin + i * step);
            }
        }
        begins = std::move(more);
    }
    ByteNumbers out;
    for (const std::uint64_t begin : begins) {
        for (std::uint64_t b = 0; b < tensor.element_bytes; ++b) {
            out.push_back(begin + b);
        }
    }
    return out;
}

bool meet(const ElementLayout& a, const ElementLayout& b) {
    const ByteNumbers bytes = bytes_of(b);
    const ByteNumbers theirs = bytes_of(a);
    return a.space == b.space && std::any_of(theirs.begin(), theirs.end(), [&](std::uint64_t byte) {
               return std::find(bytes.begin(), bytes.end(), byte) != bytes.end();
           });
}

TEST(SharedMemory, IsFoundWhereTwoTensorsHaveAByteInCommon) {
    std::mt19937 random(3);
    const auto draw = [&](std::uint64_t most) { return random() % (most + 1); };
    int shared = 0;
    for (int round = 0; round < 3000; ++round) {
        std::vector<ElementLayout> tensors(2 + draw(2));
        for (ElementLayout& t : tensors) {
            t.begin = 100 + draw(60);
            t.element_bytes = 1 + draw(3);
            t.space = draw(4) / 4;
            t.kin = draw(3);
            for (std::uint64_t d = draw(2); d > 0; --d) {
                t.dimensions.push_back({1 + draw(12), 2 + draw(2)});
            }
            std::sort(t.dimensions.begin(), t.dimensions.end(),
                      [](const auto& a, const auto& b) { return a.step_bytes < b.step_bytes; });
            const ByteNumbers bytes = bytes_of(t);
            EXPECT_EQ(t.end(), *std::max_element(bytes.begin(), bytes.end()) + 1);
            ByteNumbers sorted = bytes;
            std::sort(sorted.begin(), sorted.end());
            if (!t.meets_itself()) {
                EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
            }
        }
        bool expected = false;
        const std::vector<std::size_t> sharing = find_sharing(tensors);
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            for (const ElementLayout& other : tensors) {
                const bool is_shared = tensors[i].kin != other.kin && meet(tensors[i], other);
                expected = expected || is_shared;
                EXPECT_TRUE(!is_shared || std::binary_search(sharing.begin(), sharing.end(), i));
            }
        }
        EXPECT_EQ(sharing.empty(), !expected);
        const auto found = find_shared(tensors);
        ASSERT_EQ(found.has_value(), expected) << round;
        if (found) {
            ++shared;
            EXPECT_NE(tensors[found->first].kin, tensors[found->second].kin);
        }
    }
    EXPECT_GT(shared, 500);
    EXPECT_LT(shared, 2500);
}

TEST(SharedMemory, ColumnsOfOneMatrixShareNothing) {
    std::vector<ElementLayout> columns;
    for (std::uint64_t i = 0; i < 50; ++i) {
        columns.push_back({1000 + 4 * i, 4, {{200, 100}}, 0, i});
    }
    EXPECT_FALSE(find_shared(columns));
    columns[7].element_bytes = 5;
    EXPECT_TRUE(find_shared(columns));
    EXPECT_FALSE(find_shared({}));
}

}  // namespace
}  // namespace penstock::state
