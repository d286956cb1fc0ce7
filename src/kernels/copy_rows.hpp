// SPDX-License-Identifier: Apache-2.0
// Puts rows together: each has a source (a row kept in the GPU's memory, or one in pinned memory of
// the host) and a destination. One warp moves one row, 16 bytes a lane where both ends are aligned
// to that. The text is the same for the GPU and for the host: a Space turns an address into a
// pointer, which on a GPU is nothing but a cast.
#pragma once

#include "kernels/portable.hpp"

#include <cstdint>

namespace penstock::kernels {

/// A row, or a piece of one. Addresses are those of the GPU. Ranges of different entries do not
/// overlap in `to`.
struct RowCopy {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    std::uint64_t bytes = 0;
};

/// Entries are at most so long, so that a few long rows keep many warps busy.
inline constexpr std::uint64_t kPieceBytes = 16384;

/// The lanes of a warp.
inline constexpr unsigned kWarp = 32;
/// Threads of a block of the kernel.
inline constexpr unsigned kBlock = 256;

/// The place of one thread among those of a launch.
struct Lane {
    std::uint64_t warp = 0;
    std::uint64_t warps = 0;
    unsigned lane = 0;
};

/// A Space in which addresses are pointers.
struct InPlace {
    template <class Unit>
    [[nodiscard]] PENSTOCK_KERNEL const Unit* read(std::uint64_t address, std::uint64_t) const {
        return reinterpret_cast<const Unit*>(address);
    }
    template <class Unit>
    [[nodiscard]] PENSTOCK_KERNEL Unit* write(std::uint64_t address, std::uint64_t) const {
        return reinterpret_cast<Unit*>(address);
    }
};

struct alignas(16) Sixteen {
    std::uint32_t words[4];
};

// Four loads are under way before the first is stored: a row of the host is far away.
template <class Unit, class Space>
PENSTOCK_KERNEL void copy_units(const Space& space, const RowCopy& row, unsigned lane) {
    const std::uint64_t count = row.bytes / sizeof(Unit);
    const Unit* const from = space.template read<Unit>(row.from, row.bytes);
    Unit* const to = space.template write<Unit>(row.to, row.bytes);
    std::uint64_t i = lane;
    for (; i + 3 * kWarp < count; i += 4 * kWarp) {
        const Unit a = from[i];
        const Unit b = from[i + kWarp];
        const Unit c = from[i + 2 * kWarp];
        const Unit d = from[i + 3 * kWarp];
        to[i] = a;
        to[i + kWarp] = b;
        to[i + 2 * kWarp] = c;
        to[i + 3 * kWarp] = d;
    }
    for (; i < count; i += kWarp) {
        to[i] = from[i];
    }
}

template <class Space>
PENSTOCK_KERNEL void copy_row(const Space& space, const RowCopy& row, unsigned lane) {
    const std::uint64_t odd = row.from | row.to | row.bytes;
    if (odd % 16 == 0) {
        copy_units<Sixteen>(space, row, lane);
    } else if (odd % 4 == 0) {
        copy_units<std::uint32_t>(space, row, lane);
    } else {
        copy_units<std::uint8_t>(space, row, lane);
    }
}

/// The kernel, of one thread: `rows` is the address of `count` entries.
template <class Space>
PENSTOCK_KERNEL void copy_rows(const Space& space, std::uint64_t rows, std::uint64_t count,
                               const Lane& self) {
    const auto* const entries = space.template read<RowCopy>(rows, count * sizeof(RowCopy));
    for (std::uint64_t i = self.warp; i < count; i += self.warps) {
        copy_row(space, entries[i], self.lane);
    }
}

}  // namespace penstock::kernels
