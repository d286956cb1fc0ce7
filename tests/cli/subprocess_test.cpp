// SPDX-License-Identifier: Apache-2.0
#include "report/subprocess.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace penstock::cli {
namespace {

const auto kNothing = [] {};

TEST(SubprocessTest, OutputErrorsAndStatusAreKeptApart) {
    const report::Finished finished =
        report::run_program({"sh", "-c", "echo out; echo err >&2; exit 3"}, kNothing);
    EXPECT_EQ(finished.status, 3);
    EXPECT_EQ(finished.output, "out\n");
    EXPECT_EQ(finished.errors, "err\n");
}

TEST(SubprocessTest, MoreOutputThanAPipeHolds) {
    const report::Finished finished = report::run_program(
        {"sh", "-c", "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2"}, kNothing);
    EXPECT_EQ(finished.status, 0);
    EXPECT_EQ(finished.output.size(), 1'000'000U);
    EXPECT_EQ(finished.errors.size(), 1'000'000U);
}

TEST(SubprocessTest, AProgramThatIsNotThereIs127) {
    EXPECT_EQ(report::run_program({"penstock-no-such-program"}, kNothing).status, 127);
}

TEST(SubprocessTest, DeathBySignal) {
    EXPECT_EQ(report::run_program({"sh", "-c", "kill -TERM $$"}, kNothing).status, 128 + 15);
}

TEST(SubprocessTest, WhatTheTickThrowsEndsTheProgram) {
    const auto start = std::chrono::steady_clock::now();
    int ticks = 0;
    const auto tick = [&] {
        if (++ticks > 2) {
            throw 7;
        }
    };
    EXPECT_THROW(static_cast<void>(report::run_program({"sleep", "60"}, tick)), int);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

}  // namespace
}  // namespace penstock::cli
