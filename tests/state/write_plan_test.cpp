// SPDX-License-Identifier: Apache-2.0
// The ranges of a file that a save writes: all of it once, what holds sums last, and nothing short
// by itself.
#include "state/writing/write_plan.hpp"

#include "stream/window_sums.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace penstock::state {
namespace {

using format::FileRange;
using format::safetensors::Tensor;

constexpr std::uint64_t kBlock = 4096;

struct Case {
    std::uint64_t tensors = 1;
    std::uint64_t bytes_each = 0;
    bool checksums = true;
};

class Planned {
public:
    explicit Planned(const Case& of)
        : data_(of.bytes_each), image_(image(of)), plan_(write_plan(image_, kBlock)) {}
    [[nodiscard]] const WritePlan& plan() const { return plan_; }
    [[nodiscard]] std::uint64_t total() const { return image_.file().total_bytes(); }

private:
    [[nodiscard]] FileImage image(const Case& of) const {
        std::vector<Tensor> tensors;
        std::vector<FileImage::Payload> payloads;
        for (std::uint64_t i = 0; i < of.tensors; ++i) {
            Tensor tensor;
            tensor.name = "t" + std::to_string(i);
            tensor.type = tensor::ElementType::kU8;
            tensor.shape = {of.bytes_each};
            tensors.push_back(std::move(tensor));
            payloads.emplace_back(data_);
        }
        return FileImage::safetensors(std::move(tensors), {}, std::move(payloads), of.checksums);
    }

    std::vector<std::byte> data_;
    FileImage image_;
    WritePlan plan_;
};

TEST(WritePlanTest, EachByteOnceAndNoBlockTwice) {
    for (const Case& of : {Case{1, 0}, Case{1, 100}, Case{3, 70'000}, Case{2, 900'000},
                           Case{1, 5 << 20}, Case{40, 1 << 20}, Case{7, 999'999, false}}) {
        const Planned planned(of);
        std::vector<FileRange> ranges = planned.plan().free;
        ranges.insert(ranges.end(), planned.plan().waiting.begin(), planned.plan().waiting.end());
        std::sort(ranges.begin(), ranges.end(),
                  [](const FileRange& a, const FileRange& b) { return a.begin < b.begin; });
        std::uint64_t at = 0;
        for (const FileRange& range : ranges) {
            EXPECT_EQ(range.begin, at);
            EXPECT_LE(range.end - range.begin, stream::window_bytes(planned.total()));
            EXPECT_TRUE(range.end % kBlock == 0 || range.end == planned.total());
            at = range.end;
        }
        EXPECT_EQ(at, planned.total()) << of.tensors << " of " << of.bytes_each;
    }
}

// A second transfer would cost more than the wait for its sums.
TEST(WritePlanTest, ASmallFileIsOneRange) {
    for (const std::uint64_t bytes : {0U, 100U, 65'536U, 1'000'000U}) {
        const Planned planned({1, bytes});
        EXPECT_EQ(planned.plan().free.size() + planned.plan().waiting.size(), 1U) << bytes;
    }
    const Planned large({1, 8 << 20});
    EXPECT_FALSE(large.plan().free.empty());
    EXPECT_FALSE(large.plan().waiting.empty());
}

}  // namespace
}  // namespace penstock::state
