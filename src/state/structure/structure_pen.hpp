// SPDX-License-Identifier: Apache-2.0
// Writes the text of a structure (structure_tags.hpp).
#pragma once

#include "format/value.hpp"
#include "state/structure/structure_text.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::state {

/// Appends values to a text. `numbers`, `tensors`: those that the values and the tensors have
/// there.
class StructurePen {
public:
    StructurePen(std::string& out, std::span<const format::ValueId> numbers,
                 std::span<const std::uint32_t> tensors)
        : out_(out), numbers_(numbers), tensor_numbers_(tensors) {}

    void begin();
    void value(const format::Value& v);

private:
    void real(double number);
    void head(const format::Value& v);
    void quoted(std::string_view text);
    void base64(std::string_view bytes);
    void bits(double number);

    std::string& out_;
    std::span<const format::ValueId> numbers_;
    std::span<const std::uint32_t> tensor_numbers_;
};

void append_storage(std::string& out, std::string_view name, std::string_view location);

/// The whole text: what parse_structure() reads as this.
[[nodiscard]] std::string text_of(const StructureText& structure);

}  // namespace penstock::state
