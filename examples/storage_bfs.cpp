// SPDX-License-Identifier: Apache-2.0
// A breadth-first search over lists of edges on storage: which rows it needs is found out while it
// runs. Threads play the warps of cuda/storage_bfs.cu; a RowServer reads for them.
#include "cuda/storage_bfs.hpp"

#include <penstock/penstock.hpp>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::uint64_t kInRow = 128;  // edges in a row of 512 bytes
constexpr std::uint32_t kWarps = 8;
constexpr std::uint64_t kLimit = 60'000'000'000;  // ns

// The lists of edges, one after the other, as rows.
void write_edges(const std::shared_ptr<penstock::Engine>& engine, const std::string& path,
                 std::vector<std::uint32_t> edges) {
    edges.resize((edges.size() + kInRow - 1) / kInRow * kInRow);
    penstock::FeatureWriter writer(engine, path);
    writer.begin_table({"edges", "U32", {kInRow}});
    writer.append(std::as_bytes(std::span(edges)));
    writer.commit();
}

}  // namespace

int main() {
    try {
        const penstock::Graph graph = penstock::rmat_graph({.scale = 14});
        std::vector<std::uint64_t> offsets{0};
        std::vector<std::uint32_t> edges;
        for (std::uint64_t node = 0; node < graph.destinations(); ++node) {
            const auto range = graph.edges_to(node);
            for (std::uint64_t place = range.begin; place < range.end; ++place) {
                edges.push_back(static_cast<std::uint32_t>(graph.source_of(place)));
            }
            offsets.push_back(edges.size());
        }
        const auto nodes = static_cast<std::uint32_t>(offsets.size() - 1);
        const auto engine = std::make_shared<penstock::Engine>();
        write_edges(engine, "storage_bfs.features", edges);

        const auto store = std::make_shared<penstock::FeatureStore>(
            penstock::FeatureStore::open(engine, "storage_bfs.features"));
        penstock::RowServer server(store, store->table("edges"));
        const auto rows = server.array<std::uint32_t>();

        std::uint32_t root = 0;
        while (root + 1 < nodes && offsets[root + 1] == offsets[root]) {
            ++root;
        }
        std::vector<std::uint32_t> distance(nodes, storage_bfs::kUnseen);
        std::vector<std::uint32_t> frontier{root};
        distance[root] = 0;
        std::atomic<bool> failed{false};
        for (std::uint32_t depth = 1; !frontier.empty() && !failed; ++depth) {
            std::vector<std::uint32_t> next(nodes);
            unsigned long long next_nodes = 0;
            const storage_bfs::Level level{offsets.data(),  distance.data(), frontier.data(),
                                           frontier.size(), next.data(),     &next_nodes,
                                           depth,           kLimit};
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

        // The same in memory, one node after the other.
        std::vector<std::uint32_t> expected(nodes, storage_bfs::kUnseen);
        std::vector<std::uint32_t> queue{root};
        expected[root] = 0;
        for (std::size_t i = 0; i < queue.size(); ++i) {
            for (std::uint64_t e = offsets[queue[i]]; e < offsets[queue[i] + 1]; ++e) {
                if (expected[edges[e]] == storage_bfs::kUnseen) {
                    expected[edges[e]] = expected[queue[i]] + 1;
                    queue.push_back(edges[e]);
                }
            }
        }
        const penstock::RowServerStats stats = server.stats();
        std::printf("%zu of %u nodes reached, %llu rows in %llu gathers\n", queue.size(), nodes,
                    static_cast<unsigned long long>(stats.rows),
                    static_cast<unsigned long long>(stats.batches));
        if (failed || distance != expected) {
            std::fputs("not what a search in memory finds\n", stderr);
            return 1;
        }
    } catch (const penstock::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
