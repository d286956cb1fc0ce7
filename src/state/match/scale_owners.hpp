// SPDX-License-Identifier: Apache-2.0
// Which tensors of a quantized file belong to another one: its scales, zero points and tables.
// Without them its values are wrong by their factor. Quantizers agree on no names, but they make
// them of few words: "weight_scale_inv", "qzeros", "SCB", "weight.absmax", "input_scale".
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::state {

/// A tensor of a file or of a model. dtype: torch's name.
struct DescribedTensor {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;
};

/// Whether values are converted from one type to another: among float16, bfloat16, float32 and
/// float64 they are. Others have to be the same.
[[nodiscard]] bool is_converted(std::string_view from, std::string_view to);

/// Finds the tensor that a scale, zero point or table belongs to.
class ScaleOwners {
public:
    /// Refers to `tensors`, which are those that may own some.
    explicit ScaleOwners(std::span<const DescribedTensor> tensors);

    /// The name of the owner. Empty: the name is not one of a scale, or has no owner.
    [[nodiscard]] std::string_view owner_of(std::string_view name) const;

private:
    std::map<std::string_view, std::string_view> tensors_;
    /// A tensor of each module that may have scales next to it, by the path of the module.
    std::map<std::string_view, std::string_view> modules_;
};

/// The kind of a file by its names and types: "weights of GPTQ or AWQ ('0.qweight')". Empty:
/// it is not quantized.
[[nodiscard]] std::string quantized_as(std::span<const DescribedTensor> tensors);

}  // namespace penstock::state
