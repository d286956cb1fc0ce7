// SPDX-License-Identifier: Apache-2.0
#include "store/identity/parts_name.hpp"

#include "base/text/hex.hpp"
#include "store/identity/identity.hpp"
#include "store/keep/store_folder.hpp"

#include <fmt/format.h>

#include <cstddef>

namespace penstock::store {

namespace {

constexpr std::size_t kRandomDigits = 8;

}  // namespace

PartsName split_parts(std::string_view name) {
    const bool is_unfinished = name.starts_with(kUnfinishedPrefix);
    name.remove_prefix(is_unfinished ? kUnfinishedPrefix.size() : 0);
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos ||
        name.find_first_not_of("0123456789abcdef", dot + 1) != std::string_view::npos ||
        !parse_checkpoint_name(name.substr(0, dot))) {
        return {};
    }
    const std::string_view digits = name.substr(dot + 1);
    if (digits.size() == kIdentityDigits + kRandomDigits) {
        return {.is_unfinished = is_unfinished,
                .checkpoint = name.substr(0, dot),
                .identity = digits.substr(0, kIdentityDigits),
                .path_digits = {}};
    }
    if (digits.size() == base::kHexDigits + kRandomDigits && !is_unfinished) {
        return {.checkpoint = name.substr(0, dot),
                .identity = {},
                .path_digits = digits.substr(0, base::kHexDigits)};
    }
    return {};
}

std::string parts_name(std::string_view checkpoint, std::string_view identity,
                       std::uint64_t random) {
    std::string digits;
    base::append_hex(digits, random);
    return fmt::format("{}.{}{}", checkpoint, identity, digits.substr(0, kRandomDigits));
}

std::string unfinished_parts_name(std::string_view parts) {
    return fmt::format("{}{}", kUnfinishedPrefix, parts);
}

std::string_view identity_of_parts(std::string_view name) {
    return split_parts(name).identity;
}

}  // namespace penstock::store
