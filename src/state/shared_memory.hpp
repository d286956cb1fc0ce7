// SPDX-License-Identifier: Apache-2.0
// Whether tensors that are to be filled have memory in common: one would get the values of another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace penstock::state {

/// Places of the elements of a tensor, which has one at least.
struct ElementLayout {
    struct Dimension {
        std::uint64_t step_bytes = 0;
        std::uint64_t extent = 0;  ///< 2 or more: others are left out
    };
    std::uint64_t begin = 0;  ///< address of the first element
    std::uint64_t element_bytes = 1;
    std::vector<Dimension> dimensions;  ///< the smallest step first
    std::uint64_t space = 0;            ///< which memory the address is of
    std::uint64_t kin = 0;              ///< may share memory with others of the same one

    /// After the last byte of the last element.
    [[nodiscard]] std::uint64_t end() const;
    /// False: no two elements have a byte in common. True: two may have.
    [[nodiscard]] bool meets_itself() const;
};

/// Two of different kin that have a byte in common, by their numbers; or nothing. Takes time and
/// memory by the stretches of those whose first to last bytes overlap with another's.
[[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> find_shared(
    std::span<const ElementLayout> tensors);

/// All whose memory lies among that of others of different kin, in groups of which two share bytes.
[[nodiscard]] std::vector<std::size_t> find_sharing(std::span<const ElementLayout> tensors);

}  // namespace penstock::state
