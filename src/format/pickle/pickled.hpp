// SPDX-License-Identifier: Apache-2.0
// Objects of Python that a state holds as pickles of their own. To make one runs what it says:
// nothing here does. This says what they are.
#pragma once

#include "format/value.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace penstock::format {

/// The class or function that makes the object, as the pickle has it ("pathlib.PosixPath");
/// "object" where that cannot be seen. The writer of the pickle chose the text.
[[nodiscard]] std::string pickled_type(std::string_view pickle);

/// "state['args'] (argparse.Namespace)" of each, escaped.
[[nodiscard]] std::vector<std::string> pickled_places(const ValueTree& tree);
/// As pickled_places(), the first few in one line; empty where nothing is pickled.
[[nodiscard]] std::string pickled_line(const ValueTree& tree);

}  // namespace penstock::format
