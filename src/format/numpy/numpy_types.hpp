// SPDX-License-Identifier: Apache-2.0
// Checks names that come from files and are passed to NumPy and torch, so that nothing else reaches
// them.
#pragma once

#include "tensor/element_type.hpp"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace penstock::format {

/// Converts digits to a number below 10^9; nothing if there are none, other characters, or a
/// leading 0: a number has only one text.
[[nodiscard]] inline std::optional<std::uint64_t> small_number(std::string_view digits) {
    std::uint64_t value = 0;
    for (const char c : digits) {
        if (c < '0' || c > '9') {
            return std::nullopt;
        }
        value = value * 10 + static_cast<std::uint64_t>(c - '0');
    }
    const bool zero_in_front = digits.size() > 1 && digits.front() == '0';
    return digits.empty() || digits.size() > 9 || zero_in_front ? std::nullopt
                                                                : std::optional(value);
}

/// Bytes of an element of "<f8", "|b1", "<U5"; nothing for types that are not plain (objects,
/// structures, dates) or of the other byte order.
[[nodiscard]] inline std::optional<std::uint64_t> numpy_item_bytes(std::string_view type) {
    if (type.size() < 3 || (type[0] != '<' && type[0] != '|')) {
        return std::nullopt;
    }
    const auto n = small_number(type.substr(2));
    if (!n) {
        return std::nullopt;
    }
    const auto one_of = [&](auto... sizes) { return ((*n == sizes) || ...); };
    const bool numeric = type[0] == '<' || *n == 1;
    switch (type[1]) {
        case 'b':
            return *n == 1 ? n : std::nullopt;
        case 'i':
        case 'u':
            return numeric && one_of(1U, 2U, 4U, 8U) ? n : std::nullopt;
        case 'f':
            return numeric && one_of(2U, 4U, 8U) ? n : std::nullopt;
        case 'c':
            return numeric && one_of(8U, 16U) ? n : std::nullopt;
        case 'S':
            return n;
        case 'U':
            return *n * 4;
        default:
            return std::nullopt;
    }
}

/// The type of the elements of "<f8", "|b1"; nothing for text, and for what numpy_item_bytes()
/// has nothing for.
[[nodiscard]] inline std::optional<tensor::ElementType> element_type_of_numpy(
    std::string_view type) {
    using enum tensor::ElementType;
    const auto bytes = numpy_item_bytes(type);
    if (!bytes) {
        return std::nullopt;
    }
    const auto one_of = [&](std::initializer_list<tensor::ElementType> sizes) {
        for (const tensor::ElementType one : sizes) {
            if (tensor::row_of(one).torch_bytes() == *bytes) {
                return std::optional(one);
            }
        }
        return std::optional<tensor::ElementType>();
    };
    switch (type[1]) {
        case 'b':
            return kBool;
        case 'i':
            return one_of({kI8, kI16, kI32, kI64});
        case 'u':
            return one_of({kU8, kU16, kU32, kU64});
        case 'f':
            return one_of({kF16, kF32, kF64});
        case 'c':
            return one_of({kC64, kC128});
        default:
            return std::nullopt;
    }
}

/// "cpu", "cuda:1": letters, and perhaps a number.
[[nodiscard]] inline bool is_device(std::string_view name) {
    const std::size_t colon = name.find(':');
    const std::string_view kind = name.substr(0, colon);
    for (const char c : kind) {
        if ((c < 'a' || c > 'z') && c != '_') {
            return false;
        }
    }
    return !kind.empty() && kind.size() < 32 &&
           (colon == std::string_view::npos || small_number(name.substr(colon + 1)));
}

}  // namespace penstock::format
