// SPDX-License-Identifier: Apache-2.0
#include "tensor/element_type.hpp"

#include "base/align.hpp"

namespace penstock {

std::optional<ElementType> element_type_named(std::string_view name) noexcept {
    const auto* row = tensor::find_row([name](const tensor::ElementTypeRow& r) {
        return !name.empty() && (r.name == name || r.torch == name);
    });
    return row != nullptr ? std::optional(row->type) : std::nullopt;
}

std::string_view name_of(ElementType type) noexcept {
    return tensor::row_of(type).name;
}

std::uint32_t bits_of(ElementType type) noexcept {
    return tensor::row_of(type).bits;
}

std::optional<std::uint64_t> bytes_of(ElementType type,
                                      std::span<const std::uint64_t> shape) noexcept {
    std::optional<std::uint64_t> bits = bits_of(type);
    for (const std::uint64_t extent : shape) {
        bits = base::checked_multiply(*bits, extent);
        if (!bits) {
            return std::nullopt;
        }
    }
    return *bits % 8 == 0 ? std::optional(*bits / 8) : std::nullopt;
}

}  // namespace penstock
