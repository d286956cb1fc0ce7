// SPDX-License-Identifier: Apache-2.0
// What a Checkpoint writes of the memory that it is given, and what it holds of the machine.
#include "store/support.hpp"
#include "stream/checksum.hpp"
#include "support/temp_folder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>

namespace penstock::store {
namespace {

using format::test::below;
using format::test::Bytes;
using format::test::Random;
using format::test::random_bytes;
using test::error_of;
using test::TestTensor;
using testing::Each;
using testing::HasSubstr;
using Shape = std::vector<std::uint64_t>;

// Visits the elements of a box: the index of each, and its number in the tensor.
void for_each_element(const Shape& shape, const Shape& begin, const Shape& end,
                      const std::function<void(const Shape&, std::uint64_t)>& call) {
    Shape index = begin;
    while (true) {
        std::uint64_t number = 0;
        for (std::size_t d = 0; d < shape.size(); ++d) {
            number = number * shape[d] + index[d];
        }
        call(index, number);
        std::size_t d = shape.size();
        while (d > 0 && ++index[d - 1] == end[d - 1]) {
            --d;
            index[d] = begin[d];
        }
        if (d == 0) {
            return;
        }
    }
}

class ReaderMemoryTest : public testing::Test {
protected:
    [[nodiscard]] Checkpoint open() const {
        return {std::make_shared<Engine>(), FileSystem::local(), folder_.path()};
    }
    TestTensor tensor(const std::string& name, Shape shape, std::uint32_t shard = 0) {
        Random random(memory_.size() + 1);
        const std::uint64_t bytes =
            4 * std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
        const Bytes& data = memory_.emplace_back(random_bytes(random, bytes));
        return {{name, "F32", std::move(shape), data}, shard};
    }

    support::TempFolder folder_;
    std::deque<Bytes> memory_;
};

// Boxes into memory with strides: dimensions in any order, with room between elements, rows and
// planes. Every byte that is no element's is as it was.
TEST_F(ReaderMemoryTest, StridesFillElementsAndNothingElse) {
    Random random(11);
    const std::vector<std::pair<std::string, Shape>> shapes{
        {"vector", {70'000}}, {"matrix", {301, 70}}, {"cube", {20, 30, 40}}};
    std::vector<TestTensor> state;
    std::map<std::string, std::span<const std::byte>> data;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
        state.push_back(tensor(shapes[i].first, shapes[i].second, static_cast<std::uint32_t>(i)));
        data[shapes[i].first] = state.back().tensor.data.span();
    }
    test::write_checkpoint(folder_.path(), state);
    Checkpoint c = open();
    for (int round = 0; round < 60; ++round) {
        const auto& [name, shape] = shapes[below(random, shapes.size())];
        Shape begin, end, order(shape.size()), strides(shape.size());
        for (const std::uint64_t extent : shape) {
            begin.push_back(below(random, extent));
            end.push_back(begin.back() + 1 + below(random, extent - begin.back()));
        }
        std::iota(order.begin(), order.end(), std::uint64_t{0});
        std::shuffle(order.begin(), order.end(), random);
        std::uint64_t reach = 4;
        for (const std::uint64_t d : order) {
            strides[d] = reach + 4 * below(random, 3);
            reach += (end[d] - begin[d] - 1) * strides[d];
        }
        constexpr std::uint64_t kGuard = 64;
        Bytes memory(reach + 2 * kGuard, std::byte{0xa5});
        Bytes expected = memory;
        for_each_element(shape, begin, end, [&](const Shape& index, std::uint64_t source) {
            std::uint64_t at = kGuard;
            for (std::size_t d = 0; d < shape.size(); ++d) {
                at += (index[d] - begin[d]) * strides[d];
            }
            std::copy_n(data[name].data() + 4 * source, 4, expected.data() + at);
        });
        const TensorRead one{.name = name,
                             .into = std::span(memory).subspan(kGuard, reach),
                             .begin = begin,
                             .end = end,
                             .strides_bytes = strides};
        c.read({&one, 1}, round % 2 == 0);
        ASSERT_TRUE(memory == expected) << name << ": [" << fmt::format("{}", fmt::join(begin, ","))
                                        << "] to [" << fmt::format("{}", fmt::join(end, ","))
                                        << "] with " << fmt::format("{}", fmt::join(strides, ","));
    }
}

TEST_F(ReaderMemoryTest, StridesThatDoNotFitAreRefused) {
    test::write_checkpoint(folder_.path(), {tensor("w", {4, 5})});
    Checkpoint c = open();
    Bytes into(200);
    const auto why = [&](std::uint64_t bytes, Shape strides) {
        const TensorRead one{
            .name = "w", .into = std::span(into).first(bytes), .strides_bytes = std::move(strides)};
        const Error error = error_of([&] { c.read({&one, 1}); });
        EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        return std::string(error.what());
    };
    EXPECT_THAT(why(80, {20}), HasSubstr("1 strides are given"));
    EXPECT_THAT(why(80, {16, 4}), HasSubstr("overlap"));
    EXPECT_THAT(why(80, {0, 4}), HasSubstr("overlap"));
    EXPECT_THAT(why(80, {20, 2}), HasSubstr("overlap"));
    EXPECT_THAT(why(79, {20, 4}), HasSubstr("do not end with the 79 bytes"));
    EXPECT_THAT(why(84, {20, 4}), HasSubstr("do not end with the 84 bytes"));
    EXPECT_THAT(why(80, {~std::uint64_t{0} / 2, 4}), HasSubstr("overlap, or do not fit in"));
    EXPECT_THAT(into, Each(std::byte{0}));
}

TEST_F(ReaderMemoryTest, ClosedItHoldsNoFileAndRefusesToRead) {
    const auto open_files = [this] {
        std::size_t count = 0;
        for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
            std::error_code gone;
            const auto target = std::filesystem::read_symlink(entry, gone).string();
            count += target.starts_with(folder_.path()) ? 1U : 0U;
        }
        return count;
    };
    test::write_checkpoint(folder_.path(), {tensor("a", {3}), tensor("b", {3}, 1)});
    Checkpoint c = open();
    EXPECT_GE(open_files(), 2U);
    c.close();
    c.close();
    EXPECT_EQ(open_files(), 0U);
    Bytes into(12);
    const TensorRead one{.name = "a", .into = into};
    for (const auto& call : std::vector<std::function<void()>>{
             [&] {
                 c.read({&one, 1});
             },
             [&] { c.read({}); }, [&] { static_cast<void>(c.verify()); }}) {
        const Error error = error_of(call);
        EXPECT_EQ(error.reason(), ErrorCode::kClosed);
        EXPECT_THAT(error.what(), HasSubstr("open it again"));
    }
    EXPECT_EQ(c.tensors().size(), 2U);
    EXPECT_EQ(c.info().shards, 2U);
}

}  // namespace
}  // namespace penstock::store
