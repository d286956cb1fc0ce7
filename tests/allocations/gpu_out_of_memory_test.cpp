// SPDX-License-Identifier: Apache-2.0
// A question about GPUs is answered, or is an error, at whichever allocation memory runs out.
#include "allocations/failing.hpp"

#include <penstock/gpu.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace penstock {
namespace {

TEST(GpuOutOfMemory, WhichThereAreIsAnAnswer) {
    EXPECT_EQ(allocator::each_allocation(
                  [](allocator::Attempt& attempt) -> std::string {
                      GpuReport report;
                      attempt([&] { report = gpus(); });
                      return report.available || !report.reason.empty() ? ""
                                                                        : "no GPU, and no reason";
                  },
                  1, 1),
              "");
}

TEST(GpuOutOfMemory, MemoryOfTheHostIsAnError) {
    int host = 0;
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      try {
                          const auto ask = [&] { static_cast<void>(device_memory(&host, 4)); };
                          return attempt(ask) ? "it is a GPU's" : "";
                      } catch (const Error& error) {
                          const ErrorCode why = error.reason();  // no driver; or it knows no such
                          return why == ErrorCode::kUnsupported ||
                                         why == ErrorCode::kInvalidArgument
                                     ? ""
                                     : error.what();
                      }
                  },
                  1, 1),
              "");
}

// Whether a call is an error of the kinds that a machine without that GPU gives.
template <typename Call>
std::string refused(allocator::Attempt& attempt, Call call) {
    try {
        return attempt(call) ? "it is a GPU's" : "";
    } catch (const Error& error) {
        const ErrorCode why = error.reason();
        return why == ErrorCode::kUnsupported || why == ErrorCode::kInvalidArgument ? ""
                                                                                    : error.what();
    }
}

TEST(GpuOutOfMemory, CopiesAreMadeOrAreAnError) {
    std::array<std::byte, 64> from{};
    std::array<std::byte, 64> to{};
    from.fill(std::byte{7});
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      to.fill(std::byte{0});
                      const MemoryCopy copy{std::span(to), std::span(from)};
                      const bool made = attempt([&] { copy_memory({&copy, 1}); });
                      return !made || to == from ? "" : "it was not made";
                  },
                  0, 1),
              "");
    EXPECT_EQ(
        allocator::each_allocation(
            [&](allocator::Attempt& attempt) -> std::string {
                const MemoryCopy copy{{to.data(), 64, MemoryKind::kDevice, 0}, std::span(from)};
                return refused(attempt, [&] { copy_memory({&copy, 1}); });
            },
            1, 1),
        "");
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      return refused(attempt, [&] { const PinnedMemory pinned(to, 64); });
                  },
                  1, 1),
              "");
}

}  // namespace
}  // namespace penstock
