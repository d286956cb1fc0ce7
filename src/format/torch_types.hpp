// SPDX-License-Identifier: Apache-2.0
// The types of elements that torch has. Those of torch 1 have a storage class of their own
// ("FloatStorage"); later ones are rebuilt from untyped storages.
#pragma once

#include "tensor/element_type.hpp"

#include <cstddef>
#include <span>
#include <string_view>

namespace penstock::format {

inline constexpr std::size_t kTensorRankMax = 64;  // torch's own

using TorchType = tensor::ElementTypeRow;

/// All but F6_E2M3 and F6_E3M2.
inline constexpr std::span<const TorchType, 22> kTorchTypes =
    std::span(tensor::kElementTypes).first<22>();
static_assert(tensor::kElementTypes[21].torch[0] != 0 && tensor::kElementTypes[22].torch[0] == 0);

/// nullptr if torch has no such type.
[[nodiscard]] constexpr const TorchType* torch_type(tensor::ElementType type) {
    const TorchType& row = tensor::row_of(type);
    return row.torch[0] == 0 ? nullptr : &row;
}

[[nodiscard]] constexpr const TorchType* torch_type_named(std::string_view dtype) {
    return dtype.empty() ? nullptr
                         : tensor::find_row([&](const auto& row) { return row.torch == dtype; });
}

}  // namespace penstock::format
