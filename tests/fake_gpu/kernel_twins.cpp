// SPDX-License-Identifier: Apache-2.0
// The kernels of src/kernels and of the examples as the fake runs them: all threads of a launch,
// one after the other.
#include "cuda/storage_bfs.hpp"
#include "kernels.hpp"
#include "kernels/copy_rows.hpp"

#include <algorithm>

namespace penstock::device::cuda::fake {
namespace {

void copy_rows(const Launch& launch, const Reach& reach) {
    const std::uint64_t threads = std::uint64_t{launch.grid[0]} * launch.block[0];
    const auto rows = launch.parameter<std::uint64_t>(0);
    const auto count = launch.parameter<std::uint64_t>(1);
    for (std::uint64_t thread = 0; thread < threads; ++thread) {
        kernels::copy_rows(reach, rows, count,
                           {thread / kernels::kWarp, threads / kernels::kWarp,
                            static_cast<unsigned>(thread % kernels::kWarp)});
    }
}

// Each warp is the one thread that plays it, and has its rows by a ring that the host serves.
void storage_bfs_level(const Launch& launch, const Reach& reach) {
    using Edges = Array<std::uint32_t>;
    const auto number = [](auto* address) { return reinterpret_cast<std::uintptr_t>(address); };
    const auto translate = [&](auto*& pointer, std::uint64_t values) {
        using Value = std::remove_reference_t<decltype(*pointer)>;
        pointer = reach.write<Value>(number(pointer), values * sizeof(Value));
    };
    const auto edges = launch.parameter<Edges>(0);
    const Ring<>& ring = edges.ring();  // pinned memory has the address that it has for the host
    static_cast<void>(reach.read<std::byte>(number(ring.head), sizeof(*ring.head)));
    static_cast<void>(reach.read<std::byte>(number(ring.slots), ring.size() * sizeof(*ring.slots)));
    auto level = launch.parameter<storage_bfs::Level>(1);
    auto* status = launch.parameter<unsigned*>(2);
    translate(level.offsets, level.nodes + std::uint64_t{1});
    translate(level.distance, level.nodes);
    translate(level.frontier, level.frontier_nodes);
    translate(level.next, level.nodes);
    translate(level.next_nodes, 1);
    translate(status, 1);
    const std::uint64_t warps = std::uint64_t{launch.grid[0]} * launch.block[0] / kernels::kWarp;
    for (std::uint64_t warp = 0; warp < warps; ++warp) {
        const RowStatus found = storage_bfs::visit(edges, level, warp, warps, 0, 1);
        *status = std::max(*status, static_cast<unsigned>(found));
    }
}

struct Row {
    const char* name;
    Twin twin;
};

constexpr Row kTwins[] = {
    {"penstock_copy_rows", copy_rows},
    {"storage_bfs_level", storage_bfs_level},
};

}  // namespace

Twin twin_of(const std::string& name) {
    for (const Row& row : kTwins) {
        if (name == row.name) {
            return row.twin;
        }
    }
    return nullptr;
}

}  // namespace penstock::device::cuda::fake
