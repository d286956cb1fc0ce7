// SPDX-License-Identifier: Apache-2.0
// All codes of pickle, of protocols 0 to 5. Protocol 2 is written.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::format::pickle {

enum Code : std::uint8_t {
    kMark = '(',
    kStop = '.',
    kPop = '0',
    kPopMark = '1',
    kDuplicate = '2',
    kFloat = 'F',
    kBinFloat = 'G',
    kInt = 'I',
    kBinInt = 'J',
    kBinInt1 = 'K',
    kLong = 'L',
    kBinInt2 = 'M',
    kNone = 'N',
    kPersistentId = 'P',
    kBinPersistentId = 'Q',
    kReduce = 'R',
    kString = 'S',
    kBinString = 'T',
    kShortBinString = 'U',
    kUnicode = 'V',
    kBinUnicode = 'X',
    kAppend = 'a',
    kBuild = 'b',
    kGlobal = 'c',
    kDict = 'd',
    kAppends = 'e',
    kGet = 'g',
    kBinGet = 'h',
    kInstance = 'i',
    kLongBinGet = 'j',
    kList = 'l',
    kObject = 'o',
    kPut = 'p',
    kBinPut = 'q',
    kLongBinPut = 'r',
    kSetItem = 's',
    kTuple = 't',
    kSetItems = 'u',
    kEmptyDict = '}',
    kEmptyList = ']',
    kEmptyTuple = ')',
    kProtocol = 0x80,
    kNewObject = 0x81,
    kExtension1 = 0x82,
    kExtension2 = 0x83,
    kExtension4 = 0x84,
    kTuple1 = 0x85,
    kTuple2 = 0x86,
    kTuple3 = 0x87,
    kTrue = 0x88,
    kFalse = 0x89,
    kLong1 = 0x8a,
    kLong4 = 0x8b,
    kBinBytes = 'B',
    kShortBinBytes = 'C',
    kShortBinUnicode = 0x8c,
    kBinUnicode8 = 0x8d,
    kBinBytes8 = 0x8e,
    kEmptySet = 0x8f,
    kAddItems = 0x90,
    kFrozenSet = 0x91,
    kNewObjectEx = 0x92,
    kStackGlobal = 0x93,
    kMemoize = 0x94,
    kFrame = 0x95,
    kByteArray8 = 0x96,
    kNextBuffer = 0x97,
    kReadonlyBuffer = 0x98,
};

[[nodiscard]] constexpr bool is_code(std::uint64_t byte) {
    constexpr std::string_view kLow = "().012BCFGIJKLMNPQRSTUVX]abcdeghijlopqrstu}";
    return byte < 0x80 ? kLow.find(static_cast<char>(byte)) != std::string_view::npos
                       : byte <= Code::kReadonlyBuffer;
}

/// Says why the reading of a pickle stopped at this byte.
[[nodiscard]] inline std::string why_damaged(std::optional<std::uint64_t> byte, bool cut_short) {
    if (byte && !is_code(*byte)) {
        return fmt::format("byte 0x{:02x} is not a pickle opcode: the pickle is damaged", *byte);
    }
    if (cut_short) {
        return "the pickle ends too soon: it is damaged";
    }
    return fmt::format(
        "pickle opcode 0x{:02x} lacks a value that it takes, or its text is not "
        "of its form: the pickle is damaged",
        byte.value_or(0));
}

}  // namespace penstock::format::pickle
