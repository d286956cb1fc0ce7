// SPDX-License-Identifier: Apache-2.0
// The objects of a state that are not read (kUnread): which, where, and what can be said of them.
#pragma once

#include "format/value.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::format {

struct UnreadPlace {
    ValueId id = kNoValue;
    std::string place;  ///< "state['args']", of limited length
};
/// Those that are in no other one, each by the first path to it, in the order of the state; no more
/// than `count_max`.
[[nodiscard]] std::vector<UnreadPlace> unread_in(const ValueTree& tree, std::size_t count_max);

/// "state['args'] (argparse.Namespace)" of the first hundred, escaped.
[[nodiscard]] std::vector<std::string> unread_places(const ValueTree& tree);

/// Empty, or why the state cannot be had whole: what is not read first, why, and what else.
[[nodiscard]] std::string why_not_whole(const ValueTree& tree);

}  // namespace penstock::format
