// SPDX-License-Identifier: Apache-2.0
// Memory runs out at each allocation of making, opening and sampling graphs: the call says so or
// has done what was asked, and the same call works afterwards.
#include "allocations/scene.hpp"

#include <penstock/graph.hpp>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace penstock {
namespace {

using allocator::Attempt;
using allocator::each;
using allocator::sampled;
using allocator::Scene;

class FeaturesOutOfMemory : public allocator::OutOfMemory {};

TEST_F(FeaturesOutOfMemory, GraphsAreMadeAndSampled) {
    in_child([](Scene& scene) {
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                Sample found;
                const std::vector<std::uint64_t> seeds{1, 2, 3};
                const bool through = attempt([&] {
                    const Graph graph = rmat_graph({.scale = 5, .seed = 2});
                    const Graph again = Graph::from_edges(graph.indices(), graph.indices(), 32, 32);
                    static_cast<void>(again.degree(0));
                    found = NeighborSampler(graph, {4, 3}, {.threads = 2}).sample(seeds, 1);
                });
                const Graph graph = rmat_graph({.scale = 5, .seed = 2});
                const Sample expected = NeighborSampler(graph, {4, 3}).sample(seeds, 1);
                return through && found.nodes[0].ids != expected.nodes[0].ids ? "wrong nodes" : "";
            },
            sampled(16));
    });
}

TEST_F(FeaturesOutOfMemory, GraphsAreOpened) {
    in_child([](Scene& scene) {
        const std::vector<std::int64_t> numbers{0, 1, 2};
        for (const auto& [name, count] : {std::pair{"/indptr", 3}, std::pair{"/indices", 2}}) {
            std::ofstream(scene.folder + name, std::ios::binary)
                .write(reinterpret_cast<const char*>(numbers.data()), count * 8);
        }
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::uint64_t edges = 0;
                const bool through = attempt([&] {
                    edges = 0;
                    for (const bool mapped : {false, true}) {
                        edges += Graph::open(*scene.engine, {.indptr = scene.folder + "/indptr",
                                                             .indices = scene.folder + "/indices",
                                                             .type = ElementType::kI64,
                                                             .mapped = mapped})
                                     .edges();
                    }
                });
                return through && edges != 4 ? "wrong edges" : "";
            },
            sampled(8));
    });
}

}  // namespace
}  // namespace penstock
