// SPDX-License-Identifier: Apache-2.0
// The search of storage_bfs.cpp on a GPU: a launch of cuda/storage_bfs.cu for each level, whose
// warps ask a RowServer for the rows. CPU-served: a thread of this program reads them.
//
//     storage_bfs_gpu [storage_bfs.ptx]
//
// Without a GPU it says so. It has run on the fake driver of tests/fake_gpu, not yet on a GPU.
#include "cuda/bfs_problem.hpp"
#include "cuda/driver.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#ifndef STORAGE_BFS_PTX
#define STORAGE_BFS_PTX "storage_bfs.ptx"
#endif

namespace {

constexpr unsigned kBlocks = 8;
constexpr unsigned kThreads = 128;                // four warps
constexpr std::uint64_t kLimit = 60'000'000'000;  // ns

std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw std::runtime_error(path + " cannot be read; give the path of storage_bfs.ptx");
    }
    return {std::istreambuf_iterator<char>(file), {}};
}

void search(const std::string& ptx) {
    const auto engine = std::make_shared<penstock::Engine>();
    const auto problem = storage_bfs::make_problem(engine, "storage_bfs_gpu.features", 12);
    const auto store = std::make_shared<penstock::FeatureStore>(
        penstock::FeatureStore::open(engine, "storage_bfs_gpu.features"));
    // The ring is pinned, and mapped for GPU 0.
    const penstock::RowServer server(store, store->table("edges"), {.gpu = 0});
    const auto rows = server.gpu_array<std::uint32_t>();

    const cuda_example::Gpu gpu;
    void* const kernel = gpu.kernel(ptx, "storage_bfs_level");
    std::vector<std::uint32_t> start(problem.nodes(), storage_bfs::kUnseen);
    start[problem.root] = 0;
    const cuda_example::Values<std::uint64_t> offsets(gpu, problem.offsets);
    const cuda_example::Values<std::uint32_t> distance(gpu, start);
    cuda_example::Values<std::uint32_t> first(gpu, problem.nodes());
    const cuda_example::Values<std::uint32_t> second(gpu, problem.nodes());
    cuda_example::Values<unsigned long long> next_nodes(gpu, 1);
    constexpr auto kReady = static_cast<unsigned>(penstock::device::RowStatus::kReady);
    const cuda_example::Values<unsigned> status(gpu, std::vector{kReady});

    first.put({problem.root});
    const auto* frontier = &first;
    const auto* next = &second;
    std::uint64_t frontier_nodes = 1;
    for (std::uint32_t depth = 1; frontier_nodes > 0; ++depth) {
        next_nodes.put({0});
        const storage_bfs::Level level{.nodes = problem.nodes(),
                                       .offsets = offsets.data(),
                                       .distance = distance.data(),
                                       .frontier = frontier->data(),
                                       .frontier_nodes = frontier_nodes,
                                       .next = next->data(),
                                       .next_nodes = next_nodes.data(),
                                       .depth = depth,
                                       .limit_ns = kLimit};
        gpu.launch(kernel, kBlocks, kThreads, rows, level, status.data());
        if (const unsigned found = status.get().front(); found != kReady) {
            throw std::runtime_error("a row did not come: status " + std::to_string(found));
        }
        frontier_nodes = next_nodes.get().front();
        std::swap(frontier, next);
        std::printf("level %u: %llu nodes\n", depth,
                    static_cast<unsigned long long>(frontier_nodes));
    }
    const penstock::RowServerStats stats = server.stats();
    std::printf("%zu of %u nodes reached on a GPU, %llu rows in %llu gathers\n", problem.reached,
                problem.nodes(), static_cast<unsigned long long>(stats.rows),
                static_cast<unsigned long long>(stats.batches));
    if (distance.get() != problem.expected) {
        throw std::runtime_error("not what a search in memory finds");
    }
}

}  // namespace

int main(int count, char** arguments) {
    const penstock::GpuReport report = penstock::gpus();
    if (!report.available) {
        std::printf("no GPU: %s\n", report.reason.c_str());
        return 0;
    }
    try {
        search(text_of(count > 1 ? arguments[1] : STORAGE_BFS_PTX));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
