// SPDX-License-Identifier: Apache-2.0
// Kernels of the fake: a launch runs the host twin of a kernel, which is the same template. What it
// reads and writes goes through Reach, which knows what a kernel on that device may touch.
#pragma once

#include "machine.hpp"

#include <cstring>
#include <stdexcept>

namespace penstock::device::cuda::fake {

struct IllegalAddress : std::exception {};

/// The memory of a launch, as a Space of src/kernels: addresses become pointers of the host.
class Reach {
public:
    Reach(Machine& machine, int device) : machine_(machine), device_(device) {}

    template <class Unit>
    [[nodiscard]] const Unit* read(std::uint64_t address, std::uint64_t bytes) const {
        return reinterpret_cast<const Unit*>(at(address, bytes, alignof(Unit)));
    }
    template <class Unit>
    [[nodiscard]] Unit* write(std::uint64_t address, std::uint64_t bytes) const {
        return reinterpret_cast<Unit*>(at(address, bytes, alignof(Unit)));
    }

private:
    struct Known {
        std::uintptr_t base = 0;
        std::size_t bytes = 0;
        std::byte* backing = nullptr;
    };
    [[nodiscard]] std::byte* at(std::uint64_t address, std::uint64_t bytes,
                                std::size_t alignment) const;

    Machine& machine_;
    int device_;
    mutable Known known_[2];  // where it was last: nothing is freed while a kernel runs
    mutable unsigned next_ = 0;
};

struct Launch {
    unsigned grid[3] = {1, 1, 1};
    unsigned block[3] = {1, 1, 1};
    std::vector<std::vector<std::byte>> parameters;

    template <class T>
    [[nodiscard]] T parameter(std::size_t index) const {
        T value{};
        std::memcpy(&value, parameters.at(index).data(), sizeof(value));
        return value;
    }
};

using Twin = void (*)(const Launch& launch, const Reach& reach);

/// The twin of a kernel; nullptr: it has none. kernel_twins.cpp has the table.
[[nodiscard]] Twin twin_of(const std::string& name);

}  // namespace penstock::device::cuda::fake
