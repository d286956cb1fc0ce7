// SPDX-License-Identifier: Apache-2.0
// Region on the host: addresses whose pages are taken when they are written to and given back by
// drop(). tests/device/owned_test.cpp has pinned memory and that of GPUs.
#include <penstock/memory.hpp>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>
#include <vector>

namespace penstock {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t kManyAddresses = std::uint64_t{1} << 39;  // it keeps most for its own use
#else
constexpr std::uint64_t kManyAddresses = std::uint64_t{1} << 45;
#endif
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

std::uint64_t pages_in(const Region& region) {
    std::vector<unsigned char> resident((region.size() + kPage - 1) / kPage);
    EXPECT_EQ(::mincore(region.data(), region.size(), resident.data()), 0);
    std::uint64_t found = 0;
    for (const unsigned char page : resident) {
        found += page & 1U;
    }
    return found;
}

TEST(Regions, TakeAPageWhenItIsWrittenAndGiveItBack) {
    Region region = Region::host(64 * kPage + 5);
    EXPECT_EQ(region.size(), 64 * kPage + 5);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data()) % kPage, 0U);
    EXPECT_EQ(region.kind(), MemoryKind::kHost);
    EXPECT_EQ(region.device(), -1);
    EXPECT_EQ(region.gpu_address(), 0U);
    EXPECT_EQ(pages_in(region), 0U);
    std::memset(region.data(), 7, region.size());
    EXPECT_EQ(pages_in(region), 65U);
    region.drop(kPage + 1, 3 * kPage);  // two whole pages lie in it
    EXPECT_EQ(pages_in(region), 63U);
    EXPECT_EQ(region.data()[kPage + 1], std::byte{7});
    EXPECT_EQ(region.data()[2 * kPage], std::byte{0});
    EXPECT_EQ(region.data()[4 * kPage - 1], std::byte{0});
    EXPECT_EQ(region.data()[4 * kPage], std::byte{7});
    region.drop(region.size(), 1);
    region.drop(UINT64_MAX, UINT64_MAX);
    region.drop(10 * kPage, UINT64_MAX);  // to the end
    // Ten, of which two came back as they were looked at, and the last, of which a part is its.
    EXPECT_EQ(pages_in(region), 11U);
}

TEST(Regions, AreMoreThanTheMemory) {
    const Region region = Region::host(kManyAddresses, true);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data()) % kHugePage, 0U);
    region.data()[region.size() - 1] = std::byte{1};
    try {
        static_cast<void>(Region::host(std::uint64_t{1} << 62));
        ADD_FAILURE() << "so many addresses there are not";
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kOutOfMemory);
        EXPECT_NE(std::string(error.what()).find("4194304 TiB"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("overcommit"), std::string::npos);
    }
}

TEST(Regions, HavePartsForTransfers) {
    const Region region = Region::host(3 * kPage);
    const Memory part = region.memory(kPage, kPage + 1);
    EXPECT_EQ(part.data, region.data() + kPage);
    EXPECT_EQ(part.bytes, kPage + 1);
    EXPECT_EQ(part.kind, MemoryKind::kHost);
    EXPECT_EQ(part.device, 0);
    EXPECT_EQ(region.memory(3 * kPage, 0).bytes, 0U);
    for (const auto& [offset, bytes] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
             {0, 3 * kPage + 1}, {3 * kPage + 1, 0}, {1, UINT64_MAX}, {UINT64_MAX, 2}}) {
        try {
            static_cast<void>(region.memory(offset, bytes));
            ADD_FAILURE() << offset << " " << bytes;
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
        }
    }
}

TEST(Regions, MoveAndAreEmptyAfterwards) {
    Region empty;
    EXPECT_EQ(empty.data(), nullptr);
    EXPECT_EQ(empty.size(), 0U);
    EXPECT_EQ(empty.memory(0, 0).bytes, 0U);
    empty.drop(0, 10);
    empty.leave();
    Region one = Region::host(kPage);
    std::byte* const there = one.data();
    Region two = std::move(one);
    EXPECT_EQ(two.data(), there);
    EXPECT_EQ(one.data(), nullptr);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(one.size(), 0U);
    two = Region::host(2 * kPage);
    EXPECT_EQ(two.size(), 2 * kPage);
    std::byte* const kept = two.data();
    two.leave();
    EXPECT_EQ(two.data(), nullptr);
    kept[0] = std::byte{1};  // it stays
    EXPECT_EQ(Region::host(0).size(), 0U);
}

TEST(Regions, AreThereInAChildOrNot) {
    const Region stays = Region::host(kPage);
    const Region goes = Region::host(kPage, false, false);
    stays.data()[0] = std::byte{3};
    goes.data()[0] = std::byte{4};
    const pid_t child = ::fork();
    if (child == 0) {
        unsigned char in = 0;
        const bool there =
            ::mincore(stays.data(), kPage, &in) == 0 && stays.data()[0] == std::byte{3};
        const bool gone = ::mincore(goes.data(), kPage, &in) != 0;
        ::_exit(there && gone ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace penstock
