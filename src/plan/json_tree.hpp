// SPDX-License-Identifier: Apache-2.0
// A small JSON document as a tree, for job files, answers and configurations of models.
#pragma once

#include "format/json.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

struct JsonTree {
    enum class Kind : unsigned char { kNull, kBool, kNumber, kString, kArray, kObject };
    Kind kind = Kind::kNull;
    double number = 0;               ///< kNumber; kBool: 0 or 1
    std::string text;                ///< kString
    std::vector<std::string> names;  ///< kObject: of `items`
    std::vector<JsonTree> items;     ///< kArray, kObject

    /// The member of an object; nullptr for a name that is not there, and for what is no object.
    [[nodiscard]] const JsonTree* find(std::string_view name) const;
    /// "a number", "a text", "an object", ...
    [[nodiscard]] std::string_view kind_name() const;
};

/// Throws Error (kInvalidArgument) with the offset; `operation` is in front of the message.
[[nodiscard]] JsonTree json_tree(std::string_view text, std::string_view operation);

}  // namespace penstock::plan
