// SPDX-License-Identifier: Apache-2.0
#include "state/piece_sums.hpp"

#include "stream/checksum.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::state {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kTensors = 6;

class PieceSumsTest : public ::testing::Test {
protected:
    explicit PieceSumsTest(std::size_t tensor_bytes = std::size_t{3} << 20) {
        std::vector<format::safetensors::Tensor> tensors;
        std::vector<FileImage::Payload> payloads;
        for (std::size_t i = 0; i < kTensors; ++i) {
            data_.push_back(support::pattern(tensor_bytes, i));
            tensors.push_back({std::string(1, static_cast<char>('a' + i)),
                               tensor::ElementType::kU8,
                               {tensor_bytes},
                               0,
                               0});
            payloads.emplace_back(data_.back());
        }
        image_ = FileImage::safetensors(std::move(tensors), {}, std::move(payloads));
        for (const format::Piece& piece : image_->file().pieces()) {
            if (piece.kind == format::Piece::Kind::kPayload) {
                ends_.push_back(piece.offset + piece.bytes);
            }
        }
    }
    void expect_right(const PieceSums& sums, std::size_t payload) const {
        std::span<const std::byte> rest = data_[payload];
        for (const std::uint64_t sum : sums.of(payload)) {
            const std::size_t bytes = std::min<std::size_t>(rest.size(), image_->piece_bytes());
            EXPECT_EQ(sum, stream::content_hash(rest.first(bytes)));
            rest = rest.subspan(bytes);
        }
        EXPECT_TRUE(rest.empty());
    }

    std::vector<std::vector<std::byte>> data_;
    std::optional<FileImage> image_;
    std::vector<std::uint64_t> ends_;  // of payloads, in the file
};

TEST_F(PieceSumsTest, AllAreMadeUnasked) {
    PieceSums sums(*image_);
    for (std::size_t i = 0; i < kTensors; ++i) {
        ASSERT_TRUE(sums.await(i, 60s));
        expect_right(sums, i);
    }
}

TEST_F(PieceSumsTest, NoneIsMadeOfWhatIsNotLet) {
    PieceSums sums(*image_, 0);
    EXPECT_FALSE(sums.await(0, 20ms));
    for (std::size_t i = 0; i < kTensors; ++i) {
        sums.let(ends_[i]);
        ASSERT_TRUE(sums.await(i, 60s)) << i;
        expect_right(sums, i);
        if (i + 1 < kTensors) {
            EXPECT_FALSE(sums.await(i + 1, 5ms)) << i;
        }
        sums.let(ends_[i]);  // once more says nothing new
    }
}

TEST_F(PieceSumsTest, WhoeverLetsNothingMayLeave) {
    PieceSums sums(*image_, 0);
    sums.let(ends_[1]);
    ASSERT_TRUE(sums.await(1, 60s));
}

class SmallPieceSumsTest : public PieceSumsTest {
protected:
    SmallPieceSumsTest() : PieceSumsTest(1000) {}
};

TEST_F(SmallPieceSumsTest, AreMadeAtOnceWhateverIsLet) {
    PieceSums sums(*image_, 0);
    for (std::size_t i = 0; i < kTensors; ++i) {
        ASSERT_TRUE(sums.await(i, 0s));
        expect_right(sums, i);
    }
}

}  // namespace
}  // namespace penstock::state
