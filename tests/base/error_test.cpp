// SPDX-License-Identifier: Apache-2.0
// Which errors are about a file and which about the machine: a table that the tests of Python read
// too (python/tests/test_errors.py).
#include <penstock/error.hpp>

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace penstock {
namespace {

TEST(Errors, AreAboutTheFileOrTheMachineAsTheTableSays) {
    std::ifstream table(PENSTOCK_SOURCE_DIR "/tests/base/about_the_file.csv");
    std::string line;
    ASSERT_TRUE(std::getline(table, line));
    int rows = 0;
    for (; std::getline(table, line); ++rows) {
        std::istringstream cells(line);
        int code = 0;
        int number = 0;
        char comma = 0;
        std::string wanted;
        cells >> code >> comma >> number >> comma;
        ASSERT_TRUE(std::getline(cells, wanted, ',')) << line;
        const Error error(static_cast<ErrorCode>(code), number, "open", "file", kNoOffset, "words");
        EXPECT_EQ(error.is_about_the_file(), wanted == "yes") << line;
    }
    EXPECT_GE(rows, 30);
}

}  // namespace
}  // namespace penstock
