// SPDX-License-Identifier: Apache-2.0
// Memory runs out at each allocation of the cache of rows, its simulator and the search for hot
// rows: the call says so or has done what was asked, and the same call works afterwards.
#include "allocations/scene.hpp"
#include "tier/cache/key_cache.hpp"

#include <penstock/features.hpp>
#include <penstock/graph.hpp>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace penstock {
namespace {

using allocator::Attempt;
using allocator::each;
using allocator::Scene;

class RowsOutOfMemory : public allocator::OutOfMemory {};

TEST_F(RowsOutOfMemory, RowsAreHinted) {
    in_child([](Scene& scene) {
        std::vector<std::uint64_t> ids(4000);
        for (std::uint64_t i = 0; i < ids.size(); ++i) {
            ids[i] = i * 7;
        }
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                tier::KeyCache cache(100, RowPolicy::kWindow, 1 << 30);
                std::uint64_t hint = tier::kNoHint;
                const bool through = attempt([&] { hint = cache.hint(ids); });
                if (through != (hint != tier::kNoHint) ||
                    cache.stats().hints != (through ? 1U : 0U)) {
                    return "a hint was taken by half";
                }
                std::vector<tier::KeyPlace> places(ids.size());
                cache.lookup(ids, places);
                cache.release(places);
                return cache.stats().hints_used == (through ? 1U : 0U) ? "" : "the wrong hint";
            },
            1);
    });
}

TEST_F(RowsOutOfMemory, TracesAreReadAndSimulated) {
    in_child([](Scene& scene) {
        const std::string path = scene.folder + "/trace";
        std::vector<std::uint64_t> words;
        for (std::uint64_t batch = 0; batch < 10; ++batch) {
            words.push_back(20);
            for (std::uint64_t i = 0; i < 20; ++i) {
                words.push_back(batch * 7 + i);
            }
        }
        std::ofstream(path, std::ios::binary)
            .write(reinterpret_cast<const char*>(words.data()),
                   static_cast<std::streamsize>(words.size() * sizeof words[0]));
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::uint64_t rows = 0;
                const bool through = attempt([&] {
                    const RowTrace trace = read_row_trace(*scene.engine, path);
                    const RowSimulator simulator(trace);
                    rows = 0;
                    for (const std::string_view policy : row_simulation_policies()) {
                        rows += simulator.run(policy, {.slots = 15}).rows;
                    }
                    const std::vector<double> counts = batch_counts(trace, 1000);
                    rows += hottest_rows(counts, 5).size();
                });
                return through && rows != 8 * 200 + 5 ? "wrong figures" : "";
            },
            1);
    });
}

TEST_F(RowsOutOfMemory, HotRowsOfAGraphAreFound) {
    in_child([](Scene& scene) {
        const std::vector<std::int64_t> indptr{0, 0, 1, 4, 4};
        const std::vector<std::int64_t> indices{0, 0, 1, 3};
        const std::vector<std::int64_t> fanouts{2, 2};
        const Graph graph{IndexArray(indptr), IndexArray(indices)};
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::size_t found = 0;
                const bool through = attempt([&] {
                    found = hottest_rows(out_degrees(graph), 2).size() +
                            hottest_rows(expected_visits(graph, fanouts), 3).size();
                });
                return through && found != 5 ? "wrong rows" : "";
            },
            1);
    });
}

}  // namespace
}  // namespace penstock
