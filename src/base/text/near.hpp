// SPDX-License-Identifier: Apache-2.0
// Suggests a known word for a misspelt one.
#pragma once

#include <span>
#include <string_view>

namespace penstock::base {

/// The candidate closest to the word, by letters that are wrong, missing, extra or exchanged with
/// their neighbour: a third of the word at most. Empty if none is that close.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       std::span<const std::string_view> candidates);

}  // namespace penstock::base
