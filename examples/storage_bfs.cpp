// SPDX-License-Identifier: Apache-2.0
// A breadth-first search over lists of edges on storage: which rows it needs is found out while it
// runs. Threads play the warps of cuda/storage_bfs.cu, which storage_bfs_gpu.cpp launches on a GPU;
// a RowServer reads for them.
#include "cuda/bfs_problem.hpp"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

namespace {

constexpr std::uint32_t kWarps = 8;
constexpr std::uint64_t kLimit = 60'000'000'000;  // ns

}  // namespace

int main() {
    try {
        const auto engine = std::make_shared<penstock::Engine>();
        const auto problem = storage_bfs::make_problem(engine, "storage_bfs.features", 14);
        const auto store = std::make_shared<penstock::FeatureStore>(
            penstock::FeatureStore::open(engine, "storage_bfs.features"));
        penstock::RowServer server(store, store->table("edges"));
        const auto rows = server.array<std::uint32_t>();

        std::vector<std::uint32_t> distance(problem.nodes(), storage_bfs::kUnseen);
        std::vector<std::uint32_t> frontier{problem.root};
        distance[problem.root] = 0;
        std::atomic<bool> failed{false};
        for (std::uint32_t depth = 1; !frontier.empty() && !failed; ++depth) {
            std::vector<std::uint32_t> next(problem.nodes());
            unsigned long long next_nodes = 0;
            const storage_bfs::Level level{.nodes = problem.nodes(),
                                           .offsets = problem.offsets.data(),
                                           .distance = distance.data(),
                                           .frontier = frontier.data(),
                                           .frontier_nodes = frontier.size(),
                                           .next = next.data(),
                                           .next_nodes = &next_nodes,
                                           .depth = depth,
                                           .limit_ns = kLimit};
            std::vector<std::thread> warps;
            for (std::uint32_t warp = 0; warp < kWarps; ++warp) {
                warps.emplace_back([&, warp] {
                    if (storage_bfs::visit(rows, level, warp, kWarps, 0, 1) !=
                        penstock::device::RowStatus::kReady) {
                        failed = true;
                    }
                });
            }
            for (std::thread& warp : warps) {
                warp.join();
            }
            next.resize(next_nodes);
            frontier = next;
            std::printf("level %u: %zu nodes\n", depth, frontier.size());
        }
        const penstock::RowServerStats stats = server.stats();
        std::printf("%zu of %u nodes reached, %llu rows in %llu gathers\n", problem.reached,
                    problem.nodes(), static_cast<unsigned long long>(stats.rows),
                    static_cast<unsigned long long>(stats.batches));
        if (failed || distance != problem.expected) {
            std::fputs("not what a search in memory finds\n", stderr);
            return 1;
        }
    } catch (const penstock::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
