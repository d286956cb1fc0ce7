// SPDX-License-Identifier: Apache-2.0
// A level of a breadth-first search whose lists of edges lie on storage: what a warp of
// storage_bfs.cu does, and a thread of storage_bfs.cpp that plays one.
#pragma once

#include <penstock/device_array.hpp>

#include <cstdint>

namespace storage_bfs {

inline constexpr std::uint32_t kUnseen = UINT32_MAX;
/// Rows that a warp has asked for at once. The ring needs as many slots for each warp.
inline constexpr std::uint32_t kAhead = 4;

/// The edges of node v are elements offsets[v] to offsets[v + 1] of a table of rows.
struct Level {
    std::uint32_t nodes = 0;
    const std::uint64_t* offsets = nullptr;
    std::uint32_t* distance = nullptr;        ///< of each node; kUnseen
    const std::uint32_t* frontier = nullptr;  ///< nodes of the last level
    std::uint64_t frontier_nodes = 0;
    std::uint32_t* next = nullptr;             ///< nodes of this level
    unsigned long long* next_nodes = nullptr;  ///< how many there are so far
    std::uint32_t depth = 0;
    std::uint64_t limit_ns = 0;  ///< for each row
};

/// True for one of all that call it for a node.
PENSTOCK_DEVICE inline bool see_first(std::uint32_t& distance, std::uint32_t depth) {
#if defined(__CUDA_ARCH__)
    return atomicCAS(&distance, kUnseen, depth) == kUnseen;
#else
    std::uint32_t unseen = kUnseen;
    return std::atomic_ref(distance).compare_exchange_strong(unseen, depth);
#endif
}

PENSTOCK_DEVICE inline void append(const Level& level, std::uint32_t node) {
#if defined(__CUDA_ARCH__)
    level.next[atomicAdd(level.next_nodes, 1ULL)] = node;
#else
    level.next[std::atomic_ref(*level.next_nodes).fetch_add(1)] = node;
#endif
}

/// The nodes warp, warp + warps, ... of the frontier. kReady, or why a row did not come.
PENSTOCK_DEVICE inline penstock::device::RowStatus visit(
    const penstock::device::Array<std::uint32_t>& edges, const Level& level, std::uint64_t warp,
    std::uint64_t warps, std::uint32_t lane, std::uint32_t lanes) {
    using penstock::device::RowStatus;
    struct Asked {
        penstock::device::Loading loading;
        std::uint64_t begin = 0;  ///< elements of the row
        std::uint64_t end = 0;
    };
    Asked asked[kAhead];
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::uint64_t place = warp;  // in the frontier
    std::uint64_t element = 0;   // next one of its node
    bool begun = false;
    const std::uint64_t in_row = edges.row_elements();
    RowStatus status = RowStatus::kReady;
    while (true) {
        while (count < kAhead && place < level.frontier_nodes && status == RowStatus::kReady) {
            const std::uint32_t node = level.frontier[place];
            element = begun ? element : level.offsets[node];
            const std::uint64_t end = level.offsets[node + 1];
            begun = element < end;
            if (!begun) {
                place += warps;
                continue;
            }
            const std::uint64_t row = element / in_row;
            const std::uint64_t row_end = end < (row + 1) * in_row ? end : (row + 1) * in_row;
            Asked& one = asked[(first + count++) % kAhead];
            one.loading = edges.load_async(row, level.limit_ns);
            one.begin = element - row * in_row;
            one.end = row_end - row * in_row;
            element = row_end;
        }
        if (count == 0) {
            return status;
        }
        Asked& one = asked[first];
        first = (first + 1) % kAhead;
        --count;
        if (status != RowStatus::kReady) {
            edges.release(one.loading);
            continue;
        }
        status = edges.wait(one.loading, level.limit_ns);
        if (status == RowStatus::kReady) {
            const std::uint32_t* const row = edges.row(one.loading);
            for (std::uint64_t i = one.begin + lane; i < one.end; i += lanes) {
                if (see_first(level.distance[row[i]], level.depth)) {
                    append(level, row[i]);
                }
            }
        }
        edges.release(one.loading);
    }
}

}  // namespace storage_bfs
