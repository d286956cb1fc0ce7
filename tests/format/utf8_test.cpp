// SPDX-License-Identifier: Apache-2.0
#include "format/utf8.hpp"

#include "format/support.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace penstock::format {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

// Character by character, as the definition of each length says.
bool by_characters(std::string_view text) {
    while (!text.empty()) {
        const std::size_t bytes = character_bytes(text);
        if (bytes == 0) {
            return false;
        }
        text.remove_prefix(bytes);
    }
    return true;
}

// At every place in a run of 32 bytes, and across its end.
TEST(Utf8, EverySequenceOfThreeBytesIsTheDefinitions) {
    std::string text(3, '\0');
    for (unsigned number = 0; number < (1U << 24); ++number) {
        text[0] = static_cast<char>(number >> 16U);
        text[1] = static_cast<char>(number >> 8U);
        text[2] = static_cast<char>(number);
        if ((number >> 16U) < 0xC0 && number % 97 != 0) {
            continue;  // the first byte is a character, or none can begin so
        }
        const bool expected = by_characters(text);
        ASSERT_EQ(is_utf8(text), expected) << number;
        if (number % 61 == 0) {
            for (const std::size_t before : {27U, 30U, 31U, 32U, 63U}) {
                ASSERT_EQ(is_utf8(std::string(before, 'x') + text + "y"), by_characters(text + "y"))
                    << number << ' ' << before;
            }
        }
    }
}

TEST(Utf8, FourBytesEndAtThePlaneThatUnicodeEndsAt) {
    for (unsigned first = 0xF0; first <= 0xFF; ++first) {
        for (unsigned second = 0; second <= 0xFF; ++second) {
            for (const unsigned third : {0x7FU, 0x80U, 0xBFU, 0xC0U}) {
                const std::string text{static_cast<char>(first), static_cast<char>(second),
                                       static_cast<char>(third), '\x80'};
                ASSERT_EQ(is_utf8(text), by_characters(text)) << first << ' ' << second;
                ASSERT_EQ(is_utf8(text + text), by_characters(text)) << first << ' ' << second;
            }
        }
    }
    EXPECT_TRUE(is_utf8("\xF4\x8F\xBF\xBF"));
    EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));
}

TEST(Utf8, TextOfAnyLengthAndMixture) {
    Random random(3);
    const std::string_view parts[] = {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                      "plain text"};
    for (int round = 0; round < 3000; ++round) {
        std::string text;
        while (text.size() < below(random, 200)) {
            text += parts[below(random, std::size(parts))];
        }
        ASSERT_TRUE(is_utf8(text)) << text;
        if (!text.empty()) {
            text[below(random, text.size())] = static_cast<char>(below(random, 256));
            ASSERT_EQ(is_utf8(text), by_characters(text));
        }
        ASSERT_EQ(is_utf8(std::string_view(text).substr(0, text.size() / 2)),
                  by_characters(std::string_view(text).substr(0, text.size() / 2)));
    }
}

TEST(Utf8, Latin1ThereAndBack) {
    Random random(4);
    for (std::size_t bytes = 0; bytes < 300; ++bytes) {
        std::string data;
        for (std::size_t i = 0; i < bytes; ++i) {
            data += static_cast<char>(below(random, bytes % 3 == 0 ? 0x80 : 0x100));
        }
        std::string text = "before";
        append_utf8(text, data);
        const std::string_view added = std::string_view(text).substr(6);
        ASSERT_EQ(text.substr(0, 6), "before");
        ASSERT_EQ(added.size(), utf8_bytes(data));
        ASSERT_TRUE(is_utf8(added));
        ASSERT_EQ(latin1_of(added), std::optional(data));
    }
    for (const std::string_view text :
         {"\xC4\x80", "a\xC4\x80z", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
        EXPECT_EQ(latin1_of(text), std::nullopt) << text;
    }
}

}  // namespace
}  // namespace penstock::format
