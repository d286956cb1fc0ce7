// SPDX-License-Identifier: Apache-2.0
// A question about GPUs is answered, or is an error, at whichever allocation memory runs out.
#include "allocations/failing.hpp"

#include <penstock/gpu.hpp>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace penstock
