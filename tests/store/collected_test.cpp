// SPDX-License-Identifier: Apache-2.0
// Tensors of a stream, copied for a later save: bits, the budget, and what ends it. Signals, forks
// and iterators of Python: test_collected.py.
#include "store/background/collected.hpp"

#include "base/wait_slice.hpp"
#include "support/text_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace penstock::store {
namespace {

using support::pattern;
using test::error_of;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;
constexpr std::uint64_t kMega = std::uint64_t{1} << 20;

void wait(const std::function<bool(std::chrono::nanoseconds)>& step) {
    while (!step(base::kWaitSlice)) {
    }
}

Bytes content(std::size_t number, std::uint64_t bytes) {
    return pattern(bytes, number * 31 + 5);
}

// All in one block of memory, which has other bytes when the next one is asked for.
TensorStream stream_of(const std::vector<std::uint64_t>& sizes) {
    TensorStream stream;
    stream.next = [sizes, at = std::size_t{0},
                   memory = Bytes()]() mutable -> std::optional<StateTensor> {
        std::fill(memory.begin(), memory.end(), std::byte{0xee});
        if (at == sizes.size()) {
            return std::nullopt;
        }
        const Bytes now = content(at, sizes[at]);
        memory.resize(std::max(memory.size(), now.size()));
        std::copy(now.begin(), now.end(), memory.begin());
        StateTensor tensor;
        tensor.name = fmt::format("t{}", at);
        tensor.dtype = "U8";
        tensor.shape = {sizes[at]};
        tensor.data = {memory.data(), sizes[at]};
        ++at;
        return tensor;
    };
    return stream;
}

TEST(Collected, HasEachTensorAsItWasWhenItCame) {
    BackgroundSaver saver(512 * kMega);
    const std::vector<std::uint64_t> sizes{0,         1,         63,        65,        9 * kMega,
                                           3,         7 * kMega, 7 * kMega, 7 * kMega, 7 * kMega,
                                           8 * kMega, 100'000,   0,         5};
    {
        const Collected found = collect(saver, stream_of(sizes), Changing::kFails, wait);
        ASSERT_EQ(found.tensors.size(), sizes.size());
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            const StateTensor& tensor = found.tensors[i];
            EXPECT_EQ(tensor.name, fmt::format("t{}", i));
            EXPECT_TRUE(tensor.is_copy);
            ASSERT_EQ(tensor.data.bytes, sizes[i]);
            const Bytes wanted = content(i, sizes[i]);
            EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), tensor.data.data)) << i;
        }
        EXPECT_GT(saver.staging().used_bytes(), 40 * kMega);
    }
    EXPECT_EQ(saver.staging().used_bytes(), 0U);
    EXPECT_TRUE(collect(saver, stream_of({}), Changing::kFails, wait).tensors.empty());
}

TEST(Collected, MoreThanTheBudgetNamesTheTensorAndHoldsNothing) {
    BackgroundSaver saver(32 * kMega);
    for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{100}, kMega, 9 * kMega}) {
        const std::vector<std::uint64_t> sizes(100'000, bytes);
        const Error error = error_of(
            [&] { static_cast<void>(collect(saver, stream_of(sizes), Changing::kFails, wait)); });
        EXPECT_EQ(error.reason(), ErrorCode::kOutOfMemory);
        EXPECT_THAT(error.what(), HasSubstr("tensor 't"));
        EXPECT_THAT(error.what(), HasSubstr("of the iterator"));
        EXPECT_EQ(saver.staging().used_bytes(), 0U);
    }
    EXPECT_EQ(collect(saver, stream_of({kMega}), Changing::kFails, wait).tensors.size(), 1U);
}

TEST(Collected, RoomOfASaveInFlightIsWaitedForAndOtherStreamsAreNot) {
    BackgroundSaver saver(64 * kMega);
    auto held = std::make_shared<Collected>(
        collect(saver, stream_of({40 * kMega}), Changing::kFails, wait));
    const Error error = error_of([&] {
        static_cast<void>(collect(saver, stream_of({40 * kMega}), Changing::kFails, wait));
    });
    EXPECT_EQ(error.reason(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("let them end first"));
    std::atomic<bool> go{false};
    const auto save = saver.add(
        [&go](PendingSave&) {
            while (!go) {
            }
        },
        "one", true, std::move(held));
    int looks = 0;
    const auto counted = [&](const std::function<bool(std::chrono::nanoseconds)>& step) {
        while (!step(std::chrono::milliseconds(1))) {
            go = ++looks > 3;
        }
    };
    const Collected found = collect(saver, stream_of({40 * kMega}), Changing::kFails, counted);
    EXPECT_GT(looks, 3);
    EXPECT_TRUE(save->done());
    EXPECT_EQ(found.tensors.size(), 1U);
}

TEST(Collected, AnotherSaveIsNotCopiedWhereItsCopiesHoldTheRoom) {
    BackgroundSaver saver(64 * kMega);
    const std::vector<std::byte> other(40 * kMega);
    TensorStream stream = stream_of({40 * kMega});
    bool staged = false;
    stream.next = [&, own = stream.next]() mutable {
        std::optional<StateTensor> tensor = own();
        if (!tensor) {  // the first one is held
            std::vector<ConstMemory> spans{{other.data(), other.size()}};
            const StagedSave save = saver.stage(spans, {{{.bytes = spans[0]}}}, {}, wait);
            EXPECT_TRUE(save.tight);
            EXPECT_TRUE(save.crowded);
            EXPECT_FALSE(save.all);
            EXPECT_EQ(spans[0].data, other.data());
            EXPECT_THAT(saver.reason_of_wait(save), HasSubstr("iterators that are read hold"));
            staged = true;
        }
        return tensor;
    };
    EXPECT_EQ(collect(saver, stream, Changing::kFails, wait).tensors.size(), 1U);
    EXPECT_TRUE(staged);
}

TEST(Collected, AnotherSaveGetsTheRoomOfASaveThatIsOver) {
    BackgroundSaver saver(64 * kMega);
    auto held = std::make_shared<Collected>(
        collect(saver, stream_of({40 * kMega}), Changing::kFails, wait));
    const auto save = saver.add([](PendingSave&) {}, "one", true, std::move(held));
    const std::vector<std::byte> other(40 * kMega);
    std::vector<ConstMemory> spans{{other.data(), other.size()}};
    EXPECT_FALSE(saver.stage(spans, {{{.bytes = spans[0]}}}, {}, wait).tight);
    EXPECT_TRUE(save->done());
    EXPECT_NE(spans[0].data, other.data());
}

TEST(Collected, WhatTheStreamThrowsEndsIt) {
    BackgroundSaver saver(64 * kMega);
    TensorStream stream = stream_of({kMega, 9 * kMega, 5});
    stream.next = [own = stream.next, count = 0]() mutable {
        if (++count == 3) {
            throw std::runtime_error("the source failed");
        }
        return own();
    };
    EXPECT_THROW(static_cast<void>(collect(saver, stream, Changing::kFails, wait)),
                 std::runtime_error);
    EXPECT_EQ(saver.staging().used_bytes(), 0U);
    TensorStream twice = stream_of({5, 5});
    twice.next = [own = twice.next]() mutable {
        std::optional<StateTensor> tensor = own();
        if (tensor) {
            tensor->name = "same";
        }
        return tensor;
    };
    EXPECT_THAT(
        error_of([&] { static_cast<void>(collect(saver, twice, Changing::kFails, wait)); }).what(),
        HasSubstr("'same': it comes twice"));
}

}  // namespace
}  // namespace penstock::store
