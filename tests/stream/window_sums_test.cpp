// SPDX-License-Identifier: Apache-2.0
#include "stream/window_sums.hpp"

#include "stream/checksum.hpp"
#include "support/error_of.hpp"
#include "support/test_engine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::stream {
namespace {

using support::error_of;
using ::testing::HasSubstr;

constexpr std::uint64_t kSummedBytes = std::uint64_t{256} << 10;
constexpr std::uint64_t kNothing = 0;  // is copied

// Two sources of which one window writes the first and a half of the second, and another the rest.
// Large ones are summed by threads, small ones by who asks.
class WindowSumsTest : public ::testing::TestWithParam<std::uint64_t> {
protected:
    [[nodiscard]] std::unique_ptr<WindowSums> sums(
        Watch watch, bool are_copies = false, std::uint64_t copied_bytes_max = kCopiedBytesMax) {
        auto out = std::make_unique<WindowSums>(
            std::vector<WindowSums::Source>{{first_, 0, are_copies},
                                            {second_, GetParam(), are_copies}},
            WindowSums::Options{.hash = content_hash,
                                .piece_bytes = kSummedBytes,
                                .watch = std::move(watch),
                                .copied_bytes_max = copied_bytes_max,
                                .name = [](std::size_t i) { return "tensor " + std::to_string(i); },
                                .path = "file"});
        const std::uint64_t half = GetParam() / 2 + 17;  // inside a piece
        windows_ = {out->add({out->all_of(0), out->pieces(1, 0, half)}),
                    out->add({out->pieces(1, half, GetParam())})};
        out->start();
        return out;
    }
    static std::vector<std::uint64_t> sums_of(std::span<const std::byte> bytes) {
        std::vector<std::uint64_t> out;
        for (std::size_t at = 0; at < bytes.size(); at += kSummedBytes) {
            out.push_back(content_hash(
                bytes.subspan(at, std::min<std::size_t>(kSummedBytes, bytes.size() - at))));
        }
        return out;
    }
    static std::vector<std::uint64_t> of(const WindowSums& sums, std::size_t source) {
        return {sums.sums(source).begin(), sums.sums(source).end()};
    }
    static std::vector<std::byte> written(const WindowSums& sums, std::size_t source,
                                          std::uint64_t begin, std::uint64_t end) {
        std::vector<std::byte> out;
        for (const ConstMemory& memory : sums.written_from(source, begin, end - begin)) {
            out.insert(out.end(), memory.span().begin(), memory.span().end());
        }
        return out;
    }

    std::vector<std::byte> first_ = support::pattern(GetParam(), 1);
    std::vector<std::byte> second_ = support::pattern(GetParam(), 2);
    std::vector<std::size_t> windows_;
};

TEST_P(WindowSumsTest, SumsAreThoseOfThePieces) {
    for (const Changing changing : {Changing::kFails, Changing::kTorn}) {
        const auto sums = this->sums({changing, {}});
        for (const std::size_t window : windows_) {
            sums->ask(window);
            sums->wait_ready(window);
            sums->ended(window);
        }
        sums->wait_over();
        EXPECT_EQ(of(*sums, 0), sums_of(first_));
        EXPECT_EQ(of(*sums, 1), sums_of(second_));
    }
}

TEST_P(WindowSumsTest, AChangeDuringTheWriteIsNamed) {
    std::uint64_t copied_bytes_max = kCopiedBytesMax;
    for (std::vector<std::byte>* changed : {&first_, &second_, &first_, &second_}) {
        const auto sums = this->sums({}, false, copied_bytes_max);
        copied_bytes_max = changed == &first_ ? copied_bytes_max : kNothing;
        sums->ask(windows_[0]);
        sums->wait_ready(windows_[0]);
        changed->front() ^= std::byte{1};
        sums->ended(windows_[0]);
        const auto error = error_of([&] { return sums->wait_over(), 0; });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->reason(), ErrorCode::kChanged);
        EXPECT_EQ(error->path(), "file");
        EXPECT_THAT(error->what(), HasSubstr(changed == &first_ ? "tensor 0" : "tensor 1"));
    }
}

// It is not enough that the bytes are the same before the save and after it.
TEST_P(WindowSumsTest, AChangeThatIsUndoneIsSeenByTheWindowsThatItMeets) {
    const auto sums = this->sums({}, false, kNothing);
    sums->ask(windows_[0]);
    sums->wait_ready(windows_[0]);
    sums->ended(windows_[0]);
    sums->wait_over();
    second_[GetParam() / 2] ^= std::byte{1};  // in the piece that both windows write
    sums->ask(windows_[1]);
    EXPECT_TRUE(error_of([&] { return sums->wait_ready(windows_[1]), 0; }));
    second_[GetParam() / 2] ^= std::byte{1};
}

// An average of weights that is swapped in while a window is at the device, and out before its end:
// of a small state the file has what was summed.
TEST_P(WindowSumsTest, AChangeThatIsUndoneDuringTheWriteIsNotInTheFile) {
    const std::vector<std::byte> before = second_;
    const std::uint64_t half = GetParam() / 2 + 17;
    const auto sums = this->sums({});
    sums->ask(windows_[0]);
    sums->wait_ready(windows_[0]);
    std::fill(second_.begin(), second_.end(), std::byte{});
    std::vector<std::byte> file = written(*sums, 1, 0, half);
    second_ = before;
    sums->ended(windows_[0]);
    sums->ask(windows_[1]);
    sums->wait_ready(windows_[1]);
    const std::vector<std::byte> rest = written(*sums, 1, half, GetParam());
    file.insert(file.end(), rest.begin(), rest.end());
    sums->ended(windows_[1]);
    sums->wait_over();
    EXPECT_TRUE(file == before);
    EXPECT_EQ(of(*sums, 1), sums_of(file));
}

// One that is there when a piece is copied, and gone at its second sum, is a change all the same.
TEST_P(WindowSumsTest, AChangeThatIsInTheFileIsNamedAlsoWhenItIsUndone) {
    second_.front() ^= std::byte{1};
    const auto sums = this->sums({});
    sums->ask(windows_[0]);
    sums->wait_ready(windows_[0]);
    second_.front() ^= std::byte{1};
    sums->ended(windows_[0]);
    EXPECT_TRUE(error_of([&] { return sums->wait_over(), 0; }));
}

TEST_P(WindowSumsTest, CopiesAreFewAtATime) {
    const std::vector<std::byte> large(std::size_t{40} << 20, std::byte{7});
    const std::uint64_t size = window_bytes(large.size());
    WindowSums sums({{large, 0, false}}, {.hash = content_hash,
                                          .piece_bytes = size,
                                          .name = [](std::size_t) { return "a tensor"; }});
    std::vector<std::size_t> windows;
    for (std::uint64_t at = 0; at < large.size(); at += size) {
        windows.push_back(sums.add({sums.pieces(0, at, at + size)}));
    }
    sums.start();
    std::size_t asked = 0;
    for (; asked < windows.size() && sums.has_room(); ++asked) {
        sums.ask(windows[asked]);
    }
    EXPECT_EQ(asked, 6U);
    sums.wait_ready(windows[0]);
    sums.ended(windows[0]);
    EXPECT_TRUE(sums.has_room());
    sums.stop();
}

TEST_P(WindowSumsTest, ASumThatWasExpectedIsOneOfThem) {
    WindowSums sums({{first_, 0, false}}, {.hash = content_hash,
                                           .piece_bytes = kSummedBytes,
                                           .name = [](std::size_t) { return "a tensor"; }});
    sums.expect(0, sums_of(second_));
    const std::size_t window = sums.add({sums.all_of(0)});
    sums.start();
    sums.ask(window);
    EXPECT_TRUE(error_of([&] { return sums.wait_ready(window), 0; }));
}

TEST_P(WindowSumsTest, CopiesAreSummedOnce) {
    const auto sums = this->sums({}, true);
    sums->ask(windows_[0]);
    sums->wait_ready(windows_[0]);
    first_.front() ^= std::byte{1};
    sums->ended(windows_[0]);
    sums->wait_over();
}

// The bytes that are written are those that were summed, whatever happens to the memory.
TEST_P(WindowSumsTest, TornIsWrittenFromCopies) {
    const std::vector<std::byte> before = second_;
    const auto sums = this->sums({Changing::kTorn, {}});
    const std::uint64_t half = GetParam() / 2 + 17;
    sums->ask(windows_[0]);
    sums->wait_ready(windows_[0]);
    std::fill(second_.begin(), second_.end(), std::byte{});
    std::vector<std::byte> file = written(*sums, 1, 0, half);
    EXPECT_TRUE(std::equal(file.begin(), file.end(), before.begin()));
    sums->ended(windows_[0]);
    sums->ask(windows_[1]);
    sums->wait_ready(windows_[1]);
    const std::vector<std::byte> rest = written(*sums, 1, half, GetParam());
    file.insert(file.end(), rest.begin(), rest.end());
    sums->ended(windows_[1]);
    sums->wait_over();
    EXPECT_EQ(of(*sums, 1), sums_of(file));
}

TEST_P(WindowSumsTest, TheLookComesBeforeEachReading) {
    std::atomic<int> looks{0};
    std::atomic<bool> gone{false};
    const auto sums = this->sums({Changing::kFails, [&](std::span<const std::size_t> sources) {
                                      ++looks;
                                      return gone ? std::optional(sources.front()) : std::nullopt;
                                  }});
    sums->ask(windows_[0]);
    sums->wait_ready(windows_[0]);
    EXPECT_GE(looks.exchange(0), 1);
    gone = true;
    sums->ended(windows_[0]);
    const auto error = error_of([&] { return sums->wait_over(), 0; });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kChanged);
    EXPECT_THAT(error->what(), HasSubstr("freed, resized or changed"));
    EXPECT_GE(looks, 1);
}

TEST_P(WindowSumsTest, WhatAWindowNeedsIsSummedWithIt) {
    for (const Changing changing : {Changing::kFails, Changing::kTorn}) {
        WindowSums sums({{first_, 0, false}, {second_, GetParam(), false}},
                        {.hash = content_hash,
                         .piece_bytes = kSummedBytes,
                         .cuts = {GetParam() + 100},
                         .watch = {changing, {}},
                         .name = [](std::size_t) { return "a tensor"; }});
        EXPECT_EQ(sums.bytes_of(sums.all_of(1).first), 100U);
        const std::size_t header = sums.add({sums.all_of(0)}, {sums.all_of(1)});
        const std::size_t data = sums.add({sums.all_of(1)});
        sums.start();
        sums.ask(header);
        sums.wait_ready(header);
        EXPECT_EQ(sums.sums(1).front(), content_hash(std::span(second_).first(100)));
        sums.ended(header);
        second_.back() ^= std::byte{1};
        sums.ask(data);
        const auto error = error_of([&] { return sums.wait_ready(data), 0; });
        EXPECT_FALSE(error);
        EXPECT_NE(written(sums, 1, 0, GetParam()).back(), second_.back());
        sums.ended(data);
        EXPECT_EQ(error_of([&] { return sums.wait_over(), 0; }).has_value(),
                  changing == Changing::kFails);
    }
}

INSTANTIATE_TEST_SUITE_P(Bytes, WindowSumsTest,
                         ::testing::Values(std::uint64_t{600'000}, std::uint64_t{9} << 20));

}  // namespace
}  // namespace penstock::stream
