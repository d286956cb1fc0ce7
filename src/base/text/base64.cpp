// SPDX-License-Identifier: Apache-2.0
#include "base/text/base64.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock::base {

namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kNoDigit = 64;

constexpr std::array<std::uint8_t, 256> values() {
    std::array<std::uint8_t, 256> out{};
    out.fill(kNoDigit);
    for (std::size_t i = 0; i < kDigits.size(); ++i) {
        out[static_cast<unsigned char>(kDigits[i])] = static_cast<std::uint8_t>(i);
    }
    return out;
}
constexpr std::array<std::uint8_t, 256> kValues = values();

}  // namespace

void append_base64(std::string& out, std::string_view bytes) {
    out.reserve(out.size() + (bytes.size() + 2) / 3 * 4);
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
        const std::size_t count = bytes.size() - at < 3 ? bytes.size() - at : 3;
        std::uint32_t word = 0;
        for (std::size_t i = 0; i < 3; ++i) {
            word = word << 8U | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0U);
        }
        for (std::size_t i = 0; i < 4; ++i) {
            out += i <= count ? kDigits[word >> (18 - 6 * i) & 63U] : '=';
        }
    }
}

bool parse_base64(std::string_view text, std::string& bytes) {
    if (text.size() % 4 != 0) {
        return false;
    }
    bytes.clear();
    bytes.reserve(text.size() / 4 * 3);
    for (std::size_t at = 0; at < text.size(); at += 4) {
        const std::string_view four = text.substr(at, 4);
        const bool last = at + 4 == text.size();
        const std::size_t padding = !last || four[3] != '=' ? 0 : four[2] == '=' ? 2 : 1;
        std::uint32_t word = 0;
        for (std::size_t i = 0; i < 4; ++i) {
            const std::uint8_t digit =
                i < 4 - padding ? kValues[static_cast<unsigned char>(four[i])] : std::uint8_t{0};
            if (digit == kNoDigit) {
                return false;
            }
            word = word << 6U | digit;
        }
        if ((word & ((1U << (8 * padding)) - 1)) != 0) {
            return false;
        }
        for (std::size_t i = 0; i < 3 - padding; ++i) {
            bytes += static_cast<char>(word >> (16 - 8 * i));
        }
    }
    return true;
}

}  // namespace penstock::base
