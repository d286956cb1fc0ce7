// SPDX-License-Identifier: Apache-2.0
// The text of a structure as its entries, each read alone.
#pragma once

#include "format/fault.hpp"
#include "state/structure/structure_tags.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::state {

// A tensor as it stands in the text.
struct WrittenTensor {
    std::uint64_t storage = 0;
    std::string flags;
    std::string dtype;  // empty: all of the storage, as the checkpoint's tensor is
    std::uint64_t offset = 0;
    std::vector<std::uint64_t> shape;
    std::vector<std::uint64_t> strides;
};

struct WrittenStorage {
    std::string name;
    std::string location = "cpu";
};

// Between the parts of a text. A string in it has no line break.
inline constexpr std::string_view kTensorsBegin = "],\n\"tensors\":[";
inline constexpr std::string_view kStoragesBegin = "],\n\"storages\":[";
inline constexpr std::string_view kStructureEnd = "]}";

struct StructureText {
    std::vector<format::Value> values;  ///< references between them are not checked yet
    std::vector<WrittenTensor> tensors;
    std::vector<WrittenStorage> storages;
};

/// `tensors`: about as many as the checkpoint has, so that room for their entries is made once.
[[nodiscard]] format::Result<StructureText> parse_structure(std::string_view text,
                                                            std::size_t tensors);

/// Equal for structures that differ at most in the devices that tensors were on, which are a rank's
/// own affair.
[[nodiscard]] std::uint64_t structure_hash(std::string_view text);

}  // namespace penstock::state
