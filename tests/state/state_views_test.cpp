// SPDX-License-Identifier: Apache-2.0
// Any view of any storage in a row, against one element after another by hand.
#include "state/state_views.hpp"

#include "format/torch_types.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace penstock::state {
namespace {

using format::TensorValue;

class RandomView {
public:
    explicit RandomView(std::uint64_t seed) : random_(seed) {
        constexpr tensor::ElementType kTypes[] = {
            tensor::ElementType::kU8, tensor::ElementType::kBF16, tensor::ElementType::kF32,
            tensor::ElementType::kF64};
        view.type = kTypes[random_() % 4];
        const std::size_t rank = random_() % 5;
        std::vector<std::size_t> order(rank);
        for (std::size_t d = 0; d < rank; ++d) {
            order[d] = d;
            view.shape.push_back(random_() % 12 == 0 ? 0 : random_() % 5 + 1);
        }
        std::shuffle(order.begin(), order.end(), random_);
        view.strides.resize(rank);
        view.offset = random_() % 4;
        std::uint64_t last = view.offset;
        std::uint64_t step = random_() % 3 + 1;
        for (const std::size_t d : order) {
            view.strides[d] = step;
            last += view.shape[d] == 0 ? 0 : (view.shape[d] - 1) * step;
            step = step * std::max<std::uint64_t>(view.shape[d], 1) + random_() % 2;
        }
        each = format::torch_type(view.type)->torch_bytes();
        storage.resize((last + 1 + random_() % 3) * each);
        for (std::byte& byte : storage) {
            byte = static_cast<std::byte>(random_());
        }
    }
    [[nodiscard]] std::vector<std::byte> by_hand() const {
        std::vector<std::byte> out;
        append(0, view.offset, out);
        return out;
    }

    TensorValue view;
    std::uint64_t each = 1;
    std::vector<std::byte> storage;

private:
    void append(std::size_t dimension, std::uint64_t at, std::vector<std::byte>& out) const {
        if (dimension == view.shape.size()) {
            const auto* const first = storage.data() + at * each;
            out.insert(out.end(), first, first + each);
            return;
        }
        for (std::uint64_t i = 0; i < view.shape[dimension]; ++i) {
            append(dimension + 1, at + i * view.strides[dimension], out);
        }
    }
    std::mt19937_64 random_;
};

TEST(StateViews, AnyViewIsPutInARow) {
    int in_a_row = 0;
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
        SCOPED_TRACE(seed);
        const RandomView made(seed);
        ASSERT_TRUE(format::fits(made.view, made.storage.size()));
        ASSERT_EQ(why_not_gathered(made.view, made.storage.size()), "");
        const std::vector<std::byte> expected = made.by_hand();
        ASSERT_EQ(view_bytes(made.view), expected.size());
        std::vector<std::byte> found(expected.size());
        gather(made.view, made.storage, found);
        EXPECT_EQ(found, expected);
        if (is_plain(made.view) && !expected.empty()) {
            ++in_a_row;
            EXPECT_EQ(
                std::memcmp(expected.data(), made.storage.data() + made.view.offset * made.each,
                            expected.size()),
                0);
        }
    }
    EXPECT_GT(in_a_row, 100);
}

TEST(StateViews, WhatWouldGrowOrIsNoneOfSafetensorsIsRefused) {
    TensorValue t;
    t.shape = {1U << 31U, 1U << 31U, 1U << 31U};
    t.strides = {0, 0, 0};
    ASSERT_TRUE(format::fits(t, 4));
    EXPECT_NE(why_not_gathered(t, 4), "");
    t.shape = {2, 1};
    EXPECT_NE(why_not_gathered(t, 4), "");
    t.strides = {1, 0};
    EXPECT_EQ(why_not_gathered(t, 8), "");
    t.negated = true;
    EXPECT_NE(why_not_gathered(t, 8), "");
    EXPECT_FALSE(is_plain(t));
}

TEST(StateViews, NamesAreThePlacesAndAContainerIsGoneThroughOnce) {
    format::ValueTree tree;
    const auto value = [&tree](format::ValueKind kind, std::int64_t integer = 0,
                               const std::string& text = {}) {
        format::Value v;
        v.kind = kind;
        v.integer = integer;
        v.text = text;
        return tree.add(std::move(v));
    };
    tree.storages.push_back({4, "cpu", "0"});
    tree.tensors.resize(1);
    const auto tensor = value(format::ValueKind::kTensor);
    const auto list = value(format::ValueKind::kList);
    tree.values[list].items = {tensor, list, tensor};  // and itself
    tree.root = value(format::ValueKind::kDict);
    tree.values[tree.root].items = {value(format::ValueKind::kString, 0, "a"), list,
                                    value(format::ValueKind::kInt, 7),         tensor,
                                    value(format::ValueKind::kString, 0, "b"), list};
    std::vector<std::string> names;
    for (const StateView& view : views_of(tree)) {
        names.push_back(view.name);
    }
    EXPECT_EQ(names, (std::vector<std::string>{"a.0", "a.2", "7"}));
}

}  // namespace
}  // namespace penstock::state
