// SPDX-License-Identifier: Apache-2.0
#include "format/zip/crc32.hpp"

#include "format/support.hpp"

#include <vector>

namespace penstock::format {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

// One bit at a time, as the definition says.
std::uint32_t by_definition(std::span<const std::byte> bytes) {
    std::uint32_t crc = 0xFFFFFFFF;
    for (const std::byte b : bytes) {
        crc ^= static_cast<std::uint32_t>(b);
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc & 1) != 0 ? (crc >> 1) ^ 0xEDB88320U : crc >> 1;
        }
    }
    return ~crc;
}

TEST(Crc32, KnownValues) {
    EXPECT_EQ(crc32({}), 0U);
    EXPECT_EQ(crc32(bytes_of("123456789")), 0xCBF43926U);
    EXPECT_EQ(crc32_by(CrcWay::kTables, bytes_of("123456789")), 0xCBF43926U);
}

// The ways that this processor has.
std::vector<CrcWay> ways() {
    std::vector<CrcWay> ways{CrcWay::kTables};
    for (const CrcWay way : {CrcWay::kFolding, CrcWay::kWideFolding}) {
        if (way <= best_crc_way()) {
            ways.push_back(way);
        }
    }
    return ways;
}

// Up to rounds of the widest folding, with an end of each narrower way after them.
TEST(Crc32, EveryLengthAndPlaceIsTheDefinitions) {
    constexpr std::size_t kBytes = 1100;
    Random random(1);
    const Bytes data = random_bytes(random, 2 * kBytes);
    for (std::size_t bytes = 0; bytes < kBytes; ++bytes) {
        const auto part = std::span(data).subspan(below(random, kBytes), bytes);
        const std::uint32_t expected = by_definition(part);
        ASSERT_EQ(crc32(part), expected) << bytes;
        const std::size_t cut = below(random, bytes + 1);
        for (const CrcWay way : ways()) {
            ASSERT_EQ(crc32_by(way, part), expected) << bytes;
            ASSERT_EQ(crc32_by(way, part.subspan(cut), crc32_by(way, part.first(cut))), expected)
                << bytes;
        }
        ASSERT_EQ(crc32(part.subspan(cut), crc32(part.first(cut))), expected) << bytes;
        ASSERT_EQ(crc32_combine(crc32(part.first(cut)), crc32(part.subspan(cut)), bytes - cut),
                  expected)
            << bytes;
    }
}

TEST(Crc32, CombinesPiecesPastFourGiB) {
    // n zero bytes behind a piece, computed by doubling instead of by powers of x.
    std::uint32_t zeros = crc32(Bytes(1));
    std::uint64_t bytes = 1;
    for (; bytes < (std::uint64_t{1} << 36); bytes *= 2) {
        zeros = crc32_combine(zeros, zeros, bytes);
    }
    std::uint32_t by_step = 0;
    const std::uint32_t step = [] {
        std::uint32_t crc = 0;
        const Bytes mib(base::kMiB);
        for (int i = 0; i < 16; ++i) {
            crc = crc32(mib, crc);
        }
        return crc;
    }();
    for (std::uint64_t done = 0; done < bytes; done += 16 * base::kMiB) {
        by_step = crc32_combine(by_step, step, 16 * base::kMiB);
    }
    EXPECT_EQ(zeros, by_step);
}

}  // namespace
}  // namespace penstock::format
