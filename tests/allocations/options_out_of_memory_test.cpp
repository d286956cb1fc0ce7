// SPDX-License-Identifier: Apache-2.0
// An options file is read, or is an error, at whichever allocation memory runs out.
#include "allocations/failing.hpp"
#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace penstock {
namespace {

TEST(OptionsOutOfMemory, AFileIsTakenOrAnError) {
    const support::TempFolder folder;
    const std::string path = folder / "options.json";
    std::ofstream(path) << R"({"queue_depth": 9, "block_bytes": "128KiB", "backend": "posix"})";
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      EngineOptions options;
                      return attempt([&] { options = load_options(path); }) &&
                                     options.queue_depth != 9
                                 ? "not what the file says"
                                 : "";
                  },
                  1, 1),
              "");
}

TEST(OptionsOutOfMemory, AWrongFileIsAnError) {
    const support::TempFolder folder;
    const std::string path = folder / "options.json";
    std::ofstream(path) << R"({"queue_depth": 9, "backend": [[1, 2], {"a": "b"}]})";
    EXPECT_EQ(allocator::each_allocation(
                  [&](allocator::Attempt& attempt) -> std::string {
                      try {
                          return attempt([&] { static_cast<void>(load_options(path)); })
                                     ? "it was taken"
                                     : "";
                      } catch (const Error& error) {
                          return error.reason() == ErrorCode::kInvalidArgument ? "" : error.what();
                      }
                  },
                  1, 1),
              "");
}

}  // namespace
}  // namespace penstock
