// SPDX-License-Identifier: Apache-2.0
// Numbers of rows as Python gives them: an integer array or tensor, of which none becomes an object
// of its own, or a list of ints.
#pragma once

#include "borrowed_memory.hpp"
#include "nanobind.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace penstock::python {

/// Numbers 64 bits wide are looked at where they lie.
class RowNumbers {
public:
    RowNumbers() = default;
    /// Raises the error for element `index`, which is `number`: less than 0, or of over 64 bits.
    using Refuse = std::function<void(std::size_t index, const std::string& number)>;

    /// ValueError or TypeError that names the argument and the element. `refuse`: by whom knows how
    /// many rows there are.
    RowNumbers(nb::handle numbers, const char* argument, const Refuse& refuse = {});
    [[nodiscard]] std::span<const std::uint64_t> values() const { return values_; }

private:
    void take_list(nb::handle numbers, const char* argument, const Refuse& refuse);
    void take_elements(const BorrowedMemory& memory, nb::handle numbers, const char* argument,
                       const Refuse& refuse);
    template <typename Number>
    void take(const char* argument, const Refuse& refuse);

    Keep keep_;
    const std::byte* data_ = nullptr;
    std::size_t count_ = 0;
    std::vector<std::uint64_t> own_;
    std::span<const std::uint64_t> values_;
};

}  // namespace penstock::python
