// SPDX-License-Identifier: Apache-2.0
// Integers in 4 bytes each where all of them fit, else in 8.
#pragma once

#include <penstock/graph.hpp>

#include <cstdint>
#include <vector>

namespace penstock::graph {

class NarrowArray {
public:
    NarrowArray() = default;
    /// Zeros. `limit`: all that set() will bring is below it.
    NarrowArray(std::uint64_t count, std::uint64_t limit)
        : wide_(is_wide(limit) ? count : 0),
          narrow_(is_wide(limit) ? 0 : count),
          is_wide_(is_wide(limit)) {}

    [[nodiscard]] static constexpr bool is_wide(std::uint64_t limit) {
        return limit > std::uint64_t{1} << 32U;
    }
    void set(std::uint64_t i, std::uint64_t value) {
        if (is_wide_) {
            wide_[i] = value;
        } else {
            narrow_[i] = static_cast<std::uint32_t>(value);
        }
    }
    [[nodiscard]] IndexArray view() const {
        return is_wide_ ? IndexArray(wide_) : IndexArray(narrow_);
    }

private:
    std::vector<std::uint64_t> wide_;
    std::vector<std::uint32_t> narrow_;
    bool is_wide_ = false;
};

}  // namespace penstock::graph
