// SPDX-License-Identifier: Apache-2.0
// Headers of .npy files: what NumPy writes is understood, everything else is an error that says
// why.
#include "format/numpy/npy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace penstock::format::npy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A file of `version` with this dictionary.
std::vector<std::byte> file_of(const std::string& text, int version = 1) {
    std::string file = "\x93NUMPY";
    file += static_cast<char>(version);
    file += '\0';
    for (int i = 0; i < (version == 1 ? 2 : 4); ++i) {
        file += static_cast<char>(text.size() >> (8 * i) & 0xff);
    }
    file += text;
    std::vector<std::byte> bytes(file.size());
    std::memcpy(bytes.data(), file.data(), file.size());
    return bytes;
}

Result<Header> read(const std::string& text, int version = 1) {
    return read_header(file_of(text, version));
}

std::string refusal(const std::string& text, ErrorCode code) {
    const auto header = read(text);
    EXPECT_FALSE(header) << text;
    if (header) {
        return "";
    }
    EXPECT_EQ(header.error().code, code) << text;
    return header.error().message;
}

TEST(Npy, WhatNumpyWrites) {
    const auto header =
        read("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 40), }          \n");
    ASSERT_TRUE(header);
    EXPECT_EQ(header->dtype, "<f4");
    EXPECT_THAT(header->shape, ElementsAre(3, 40));
    EXPECT_EQ(header->data_bytes, 480U);
    EXPECT_EQ(header->header_bytes, 10U + 71U);
    const auto scalar = read("{'descr': '|u1', 'fortran_order': False, 'shape': ()}", 2);
    ASSERT_TRUE(scalar);
    EXPECT_THAT(scalar->shape, IsEmpty());
    EXPECT_EQ(scalar->data_bytes, 1U);
    const auto old = read("{'shape': (7L,), 'fortran_order': True, \"descr\": '<U5'}", 3);
    ASSERT_TRUE(old);  // one dimension has both orders
    EXPECT_EQ(old->data_bytes, 7U * 20);
    const auto empty = read("{'descr': '<f8', 'fortran_order': True, 'shape': (0,)}");
    ASSERT_TRUE(empty);
    EXPECT_EQ(empty->data_bytes, 0U);
}

TEST(Npy, WhatIsNotReadIsRefusedWithTheReason) {
    const auto with = [](const std::string& descr) {
        return "{'descr': " + descr + ", 'fortran_order': False, 'shape': (2,)}";
    };
    constexpr auto kUnsupported = ErrorCode::kUnsupported;
    EXPECT_THAT(refusal(with("'>f4'"), kUnsupported), HasSubstr("big-endian"));
    EXPECT_THAT(refusal(with("'>f3'"), kUnsupported), HasSubstr("neither plain"));
    EXPECT_THAT(refusal(with("'|O'"), kUnsupported), HasSubstr("Python objects"));
    EXPECT_THAT(refusal(with("[('a', '<f4')]"), kUnsupported), HasSubstr("structured"));
    EXPECT_THAT(refusal(with("'<M8[D]'"), kUnsupported), HasSubstr("neither plain"));
    EXPECT_THAT(refusal(with("'<f3'"), kUnsupported), HasSubstr("neither plain"));
    EXPECT_THAT(refusal("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", kUnsupported),
                HasSubstr("Fortran"));
}

TEST(Npy, WhatIsNoHeaderIsAFault) {
    for (const char* text :
         {"", "{", "{}", "[]", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False}",
          "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
          "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
          "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'shape': (3,)}",
          "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
          "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
          "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} 1",
          "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (3,)}",
          "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
          "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}"}) {
        EXPECT_NE(refusal(text, ErrorCode::kInvalidArgument), "");
    }
    std::string ranks;
    for (int i = 0; i < 65; ++i) {
        ranks += "1,";
    }
    EXPECT_THAT(refusal("{'descr': '<f4', 'fortran_order': False, 'shape': (" + ranks + ")}",
                        ErrorCode::kInvalidArgument),
                HasSubstr("64 dimensions"));
    EXPECT_FALSE(header_bytes({}));
    EXPECT_FALSE(read("{}", 4));
    EXPECT_FALSE(read(std::string(70'000, ' '), 2));
}

// Cut anywhere, and with any byte changed: an answer, and never one that leads past the file.
TEST(Npy, CutAndDamagedHeaders) {
    const auto whole =
        file_of("{'descr': '<c16', 'fortran_order': False, 'shape': (3, 4, 5), }   \n");
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
        EXPECT_FALSE(read_header(std::span(whole).first(bytes)));
    }
    std::mt19937_64 random(1);
    for (int i = 0; i < 20'000; ++i) {
        auto damaged = whole;
        damaged[random() % damaged.size()] = static_cast<std::byte>(random());
        if (const auto header = read_header(damaged)) {
            EXPECT_LE(header->header_bytes, damaged.size());
            EXPECT_LT(header->data_bytes, std::uint64_t{1} << 61);
        } else {
            EXPECT_NE(header.error().message, "");
        }
    }
}

}  // namespace
}  // namespace penstock::format::npy
