// SPDX-License-Identifier: Apache-2.0
#include "api/options_file.hpp"

#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

namespace penstock::api {
namespace {

using testing::HasSubstr;

EngineOptions parsed(const std::string& text) {
    const auto options = parse_options(text, "my.json", EngineOptions());
    EXPECT_TRUE(options.has_value()) << text << ": " << options.error().message;
    return options.value_or(EngineOptions());
}

std::string refusal(const std::string& text) {
    const auto options = parse_options(text, "my.json", EngineOptions());
    EXPECT_FALSE(options.has_value()) << text;
    if (options) {
        return "";
    }
    EXPECT_EQ(options.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(options.error().path, "my.json");
    return options.error().message;
}

TEST(OptionsFileTest, EveryOptionIsTaken) {
    const EngineOptions options = parsed(R"({
        "about": "anything", "backend": "posix", "block_bytes": 4194304, "queue_depth": 7,
        "in_flight_bytes": "64MiB", "channels": 2, "copy_threads": 3, "inline_bytes_max": 0,
        "transfers_max": 9, "background_bytes": "4MiB", "gap_bytes": 0})");
    EXPECT_EQ(options.backend, BackendKind::kPosix);
    EXPECT_EQ(options.block_bytes, 4U << 20);
    EXPECT_EQ(options.queue_depth, 7U);
    EXPECT_EQ(options.in_flight_bytes, std::uint64_t{64} << 20);
    EXPECT_EQ(options.channels, 2U);
    EXPECT_EQ(options.copy_threads, 3U);
    EXPECT_EQ(options.inline_bytes_max, 0U);
    EXPECT_EQ(options.transfers_max, 9U);
    EXPECT_EQ(options.background_bytes, std::uint64_t{4} << 20);
    EXPECT_EQ(options.gap_bytes, 0U);
}

TEST(OptionsFileTest, WhatIsNotNamedStays) {
    const EngineOptions options = parsed(R"({"queue_depth": 8})");
    EXPECT_EQ(options.block_bytes, EngineOptions().block_bytes);
    EXPECT_EQ(parsed("{}").queue_depth, EngineOptions().queue_depth);
}

TEST(OptionsFileTest, BackendsHaveTheirNames) {
    EXPECT_EQ(parsed(R"({"backend": "auto"})").backend, BackendKind::kAuto);
    EXPECT_EQ(parsed(R"({"backend": "io_uring"})").backend, BackendKind::kUring);
    EXPECT_EQ(parsed(R"({"backend": "uring"})").backend, BackendKind::kUring);
    EXPECT_EQ(parsed(R"({"backend": "libaio"})").backend, BackendKind::kAio);
    EXPECT_EQ(parsed(R"({"backend": "aio"})").backend, BackendKind::kAio);
}

struct Wrong {
    const char* text;
    const char* says;
};

class OptionsFileWrongTest : public testing::TestWithParam<Wrong> {};

TEST_P(OptionsFileWrongTest, IsRefusedWithFileKeyWhatCameAndWhatIsAllowed) {
    const std::string message = refusal(GetParam().text);
    EXPECT_THAT(message, HasSubstr("options file my.json: "));
    EXPECT_THAT(message, HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, OptionsFileWrongTest,
    testing::Values(
        Wrong{R"({"blok_bytes": 1})", R"(no option "blok_bytes"; there are about, backend, )"},
        Wrong{R"({"queue_depth": 0})", "queue_depth: got 0; expected 1 to 4096, as an integer"},
        Wrong{R"({"queue_depth": 4097})", "got 4097"}, Wrong{R"({"queue_depth": -1})", "got -1"},
        Wrong{R"({"queue_depth": 1.5})", "got 1.5"}, Wrong{R"({"queue_depth": "8"})", "got \"8\""},
        Wrong{R"({"queue_depth": true})", "got true"},
        Wrong{R"({"queue_depth": null})", "got null"},
        Wrong{R"({"queue_depth": 18446744073709551617})", "expected 1 to 4096"},
        Wrong{R"({"block_bytes": 65537})",
              "got 65537; expected a multiple of 64 KiB from 64 KiB to 1 GiB"},
        Wrong{R"({"block_bytes": "1 elephant"})", "got \"1 elephant\""},
        Wrong{R"({"block_bytes": "2GiB"})", "got \"2GiB\""},
        Wrong{R"({"in_flight_bytes": 1})", "expected 4 KiB or more"},
        Wrong{R"({"channels": 65})", "expected 1 to 64"},
        Wrong{R"({"channels": [1]})", "channels: got a list"},
        Wrong{R"({"backend": "nvme"})", R"(backend: got "nvme"; expected 'auto')"},
        Wrong{R"({"backend": 3})", "got 3"}, Wrong{R"({"about": 3})", "about: got 3"},
        Wrong{R"({"channels": 1, "channels": 2})", "the name 'channels' comes twice"},
        Wrong{R"([1, 2])", "it holds a list; it takes an object"},
        Wrong{"7", "it holds 7; it takes an object"}, Wrong{"", "it is not JSON"},
        Wrong{"{", "it is not JSON"}, Wrong{R"({"channels": 1} x)", "it is not JSON"},
        Wrong{"\xff\xfe", "it is not JSON"},
        Wrong{R"({"about": {"a": 1}})", "about: got an object"}));

// No bracket costs a stack frame of ours.
TEST(OptionsFileTest, DeepAndLongTextsAreRefused) {
    const std::string deep(std::size_t{400} << 10, '[');
    EXPECT_THAT(refusal(deep), HasSubstr("it holds a list"));
    EXPECT_THAT(refusal("{\"about\": " + deep), HasSubstr("got a list"));
    EXPECT_THAT(refusal(std::string((std::size_t{1} << 20) + 1, ' ')),
                HasSubstr("more than 1 MiB"));
    std::string wide;
    for (int i = 0; i < 500; ++i) {
        wide += "\u00e4";
    }
    const std::string message = refusal("{\"backend\": \"" + wide + "\"}");
    EXPECT_LT(message.size(), 200U);
    EXPECT_THAT(message, HasSubstr("\u00e4..."));
}

class LoadOptionsTest : public testing::Test {
protected:
    [[nodiscard]] std::string file(const std::string& text) const {
        std::string path = folder_.path() + "/options.json";
        std::ofstream(path) << text;
        return path;
    }
    [[nodiscard]] std::string folder() const { return folder_.path(); }

private:
    support::TempFolder folder_;
};

TEST_F(LoadOptionsTest, TheFileBeatsTheEnvironmentAndTheEnvironmentTheDefault) {
    ASSERT_EQ(::setenv("PENSTOCK_QUEUE_DEPTH", "5", 1), 0);
    ASSERT_EQ(::setenv("PENSTOCK_CHANNELS", "2", 1), 0);
    const EngineOptions options = load_options(file(R"({"queue_depth": 9})"));
    ::unsetenv("PENSTOCK_QUEUE_DEPTH");
    ::unsetenv("PENSTOCK_CHANNELS");
    EXPECT_EQ(options.queue_depth, 9U);
    EXPECT_EQ(options.channels, 2U);
}

TEST_F(LoadOptionsTest, AnEngineRunsWithThem) {
    const Engine engine(load_options(file(R"({"block_bytes": "128KiB", "queue_depth": 3})")));
    EXPECT_EQ(engine.options().block_bytes, 128U << 10);
    EXPECT_EQ(engine.options().queue_depth, 3U);
}

TEST_F(LoadOptionsTest, WhatCannotBeReadSaysWhy) {
    for (const auto& [path, code] :
         {std::pair{folder() + "/absent.json", ENOENT}, std::pair{folder(), EISDIR}}) {
        try {
            static_cast<void>(load_options(path));
            ADD_FAILURE() << path;
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kSystem);
            EXPECT_EQ(error.system_errno(), code);
            EXPECT_EQ(error.path(), path);
            EXPECT_THAT(error.what(), HasSubstr(path));
        }
    }
}

}  // namespace
}  // namespace penstock::api
