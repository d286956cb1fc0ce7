// SPDX-License-Identifier: Apache-2.0
// What somebody may have meant by a word that nothing has.
#pragma once

#include <span>
#include <string_view>

namespace penstock::base {

/// The candidate that differs least from the word, by letters that are wrong, missing, too many or
/// exchanged with their neighbour: a third of the word at most. Empty: none is that near.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       std::span<const std::string_view> candidates);

}  // namespace penstock::base
