// SPDX-License-Identifier: Apache-2.0
// What base/ makes of bytes and words: hex, base64, paths, the nearest word.
#include "base/path.hpp"
#include "base/text/base64.hpp"
#include "base/text/hex.hpp"
#include "base/text/near.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::base {
namespace {

TEST(Hex, SixteenDigitsThereAndBack) {
    for (const std::uint64_t value :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0x0123456789abcdef},
          std::numeric_limits<std::uint64_t>::max()}) {
        std::string digits = "x";
        append_hex(digits, value);
        ASSERT_EQ(digits.size(), 1 + kHexDigits);
        std::uint64_t read = 7;
        EXPECT_TRUE(parse_hex(std::string_view(digits).substr(1), read));
        EXPECT_EQ(read, value);
    }
    std::string digits;
    append_hex(digits, 0x0123456789abcdef);
    EXPECT_EQ(digits, "0123456789abcdef");
}

TEST(Hex, OtherFormsAreRefused) {
    std::uint64_t value = 0;
    for (const char* text : {"", "0", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF",
                             "0123456789abcdeg", "0x23456789abcdef", " 123456789abcdef"}) {
        EXPECT_FALSE(parse_hex(text, value)) << text;
    }
}

// RFC 4648, section 10.
const std::vector<std::pair<std::string, std::string>> kVectors{{"", ""},
                                                                {"f", "Zg=="},
                                                                {"fo", "Zm8="},
                                                                {"foo", "Zm9v"},
                                                                {"foob", "Zm9vYg=="},
                                                                {"fooba", "Zm9vYmE="},
                                                                {"foobar", "Zm9vYmFy"}};

TEST(Base64, VectorsOfTheStandard) {
    for (const auto& [bytes, text] : kVectors) {
        std::string written;
        append_base64(written, bytes);
        EXPECT_EQ(written, text);
        std::string read;
        EXPECT_TRUE(parse_base64(text, read)) << text;
        EXPECT_EQ(read, bytes);
    }
}

TEST(Base64, AnyBytesComeBack) {
    std::mt19937 random(1);
    for (std::size_t size = 0; size < 200; ++size) {
        std::string bytes(size, '\0');
        for (char& byte : bytes) {
            byte = static_cast<char>(random());
        }
        std::string text;
        append_base64(text, bytes);
        std::string read;
        ASSERT_TRUE(parse_base64(text, read));
        EXPECT_EQ(read, bytes);
    }
}

TEST(Base64, OtherTextsAreRefused) {
    std::string bytes;
    for (const char* text : {"Z", "Zg", "Zg=", "Zg===", "Zm9v=", "====", "Zm9v\n", "Zm 9v",
                             "Zg==Zg==", "Zh==", "Zm9=", "Zm-_"}) {
        EXPECT_FALSE(parse_base64(text, bytes)) << text;
    }
}

TEST(Path, FolderLastNameAndJoin) {
    struct Row {
        std::string_view path, folder, name;
    };
    for (const Row& row :
         {Row{"a/b/c", "a/b", "c"}, Row{"/a/b", "/a", "b"}, Row{"/a", "/", "a"}, Row{"a", ".", "a"},
          Row{"a/", "a", ""}, Row{"/", "/", ""}, Row{"", ".", ""}, Row{"a//b", "a/", "b"}}) {
        EXPECT_EQ(folder_of(row.path), row.folder) << row.path;
        EXPECT_EQ(last_name(row.path), row.name) << row.path;
    }
    EXPECT_EQ(join("a", "b"), "a/b");
    EXPECT_EQ(join("a/", "b"), "a/b");
    EXPECT_EQ(join("/", "b"), "/b");
}

TEST(Near, AThirdOfTheWordMayDiffer) {
    constexpr std::array<std::string_view, 4> kWords{"block_bytes", "queue_depth", "channels",
                                                     "in_flight_bytes"};
    EXPECT_EQ(nearest("block_byte", kWords), "block_bytes");
    EXPECT_EQ(nearest("blokc_bytes", kWords), "block_bytes");  // exchanged
    EXPECT_EQ(nearest("chanels", kWords), "channels");
    EXPECT_EQ(nearest("queue-depth", kWords), "queue_depth");
    EXPECT_EQ(nearest("channels", kWords), "channels");
    EXPECT_EQ(nearest("colour", kWords), "");
    EXPECT_EQ(nearest("", kWords), "");
    EXPECT_EQ(nearest("channels", {}), "");
    EXPECT_EQ(nearest(std::string(100'000, 'x'), kWords), "");
}

}  // namespace
}  // namespace penstock::base
