// SPDX-License-Identifier: Apache-2.0
#include "api/option_table.hpp"

#include "api/options.hpp"
#include "api/options_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace penstock::api {
namespace {

using ::testing::HasSubstr;

TEST(OptionTable, EachRowIsAMemberOfItsOwn) {
    for (const Option& option : kOptions) {
        EngineOptions options;
        EXPECT_TRUE(option.takes(option.get(options))) << option.name << ": its default";
        const std::uint64_t other = option.get(options) + option.step;
        option.set(options, other);
        EXPECT_EQ(option.get(options), other);
        for (const Option& unchanged : kOptions) {
            EXPECT_EQ(unchanged.get(options) == unchanged.get({}), &unchanged != &option);
        }
        EXPECT_LE(option.max, option.member_max()) << option.name;
    }
}

TEST(OptionTable, MinAndMaxAreTakenAndWhatIsBeyondThemIsNot) {
    for (const Option& option : kOptions) {
        EXPECT_TRUE(option.takes(option.min)) << option.name;
        EXPECT_TRUE(option.takes(option.max)) << option.name;
        EXPECT_FALSE(option.takes(option.max + 1)) << option.name;
        EXPECT_EQ(option.takes(option.min + 1), option.step == 1) << option.name;
        if (option.min > 0) {
            EXPECT_FALSE(option.takes(option.min - 1)) << option.name;
            EngineOptions options;
            option.set(options, option.min - 1);
            const auto core = core_options(options);
            ASSERT_FALSE(core) << option.name;
            EXPECT_THAT(core.error().message, HasSubstr(std::string(option.name) + ": got "));
            EXPECT_THAT(core.error().message, HasSubstr("; expected " + option.allowed()));
        }
    }
}

TEST(OptionTable, TheEnvironmentHasEveryRow) {
    for (const Option& option : kOptions) {
        std::string variable = std::string("PENSTOCK_") + option.name;
        for (char& c : variable) {
            c = c == '_' ? c : static_cast<char>(std::toupper(c));
        }
        ::setenv(variable.c_str(), std::to_string(option.min).c_str(), 1);
        const auto options = options_from_environment();
        ASSERT_TRUE(options) << variable;
        EXPECT_EQ(option.get(*options), option.min);
        ::setenv(variable.c_str(), "-1", 1);
        const auto wrong = options_from_environment();
        ::unsetenv(variable.c_str());
        ASSERT_FALSE(wrong) << variable;
        EXPECT_EQ(wrong.error().message,
                  "environment variable " + variable + ": got '-1'; expected " + option.allowed());
    }
}

TEST(OptionTable, PairsOfADiskAndAGpuAreATextThere) {
    const auto read = gpu_paths_in(" 259:1  0000:3b:00.0 bounce,8:16 0000:3C:00.0 cufile ");
    ASSERT_TRUE(read);
    const std::vector<TunedGpuPath> pairs{{{259, 1}, "0000:3b:00.0", GpuPath::kBounce},
                                          {{8, 16}, "0000:3C:00.0", GpuPath::kCuFile}};
    EXPECT_EQ(*read, pairs);
    EXPECT_EQ(text_of(pairs), "259:1 0000:3b:00.0 bounce, 8:16 0000:3C:00.0 cufile");
    EXPECT_EQ(gpu_paths_in(text_of(pairs)), pairs);
    EXPECT_TRUE(gpu_paths_in("")->empty());
    for (const char* wrong : {"259:1", "259:1 0000:3b:00.0", "259:1 0000:3b:00.0 auto",
                              "259 0000:3b:00.0 bounce", "-1:1 0000:3b:00.0 bounce",
                              "259:1 0000:3b:00.0 bounce more", ",", "nvme0n1 cuda bounce"}) {
        EXPECT_FALSE(gpu_paths_in(wrong)) << wrong;
    }
    const auto refused = parse_options(R"({"tuned_gpu_paths": "259:1"})", "x.json", {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(
        refused.error().message,
        "options file x.json: tuned_gpu_paths: got \"259:1\"; expected pairs with commas between, "
        "each as '259:1 0000:3b:00.0 bounce'");
    const auto taken =
        parse_options(R"({"tuned_gpu_paths": "259:1 0000:3b:00.0 bounce"})", "x.json", {});
    ASSERT_TRUE(taken);
    EXPECT_EQ(taken->tuned_gpu_paths, std::vector{pairs[0]});
    EngineOptions options;
    options.tuned_gpu_paths = {{{259, 1}, "0000:3b:00.0", GpuPath::kAuto}};
    EXPECT_FALSE(core_options(options));
}

TEST(OptionTable, TheEnvironmentHasEveryWord) {
    for (const auto& [name, word] :
         {std::pair{"backend", "posix"}, {"cache", "cached"}, {"gpu_path", "bounce"}}) {
        const WordOption* const option = std::find_if(
            kWordOptions.begin(), kWordOptions.end(),
            [name = name](const WordOption& one) { return std::string_view(one.name) == name; });
        ASSERT_NE(option, kWordOptions.end());
        std::string variable = std::string("PENSTOCK_") + name;
        for (char& c : variable) {
            c = c == '_' ? c : static_cast<char>(std::toupper(c));
        }
        ::setenv(variable.c_str(), word, 1);
        const auto options = options_from_environment();
        ASSERT_TRUE(options) << variable;
        EXPECT_EQ(option->get(*options), word);
        EXPECT_EQ(option->get({}), "auto");
        ::setenv(variable.c_str(), "quick", 1);
        const auto wrong = options_from_environment();
        ::unsetenv(variable.c_str());
        ASSERT_FALSE(wrong) << variable;
        EXPECT_EQ(wrong.error().message, "environment variable " + variable +
                                             ": got 'quick'; expected " + option->allowed);
    }
}

TEST(OptionTable, AllowedIsWhatPeopleWrite) {
    EXPECT_EQ(kOptions[0].allowed(), "a multiple of 64 KiB from 64 KiB to 1 GiB");
    EXPECT_EQ(kOptions[1].allowed(), "1 to 4096");
    EXPECT_EQ(kOptions[2].allowed(), "4 KiB or more");
}

}  // namespace
}  // namespace penstock::api
