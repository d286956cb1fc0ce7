// SPDX-License-Identifier: Apache-2.0
// Several channels on one device, and several devices: each does its share, whatever is
// transferred.
#include "simulation/simulation.hpp"
#include "suite/suite.hpp"

#include <random>

namespace penstock::suite {
namespace {

// Bytes that each channel read for one transfer of these extents.
std::vector<std::uint64_t> shares(const std::vector<Extent>& extents, std::uint64_t file_bytes) {
    simulation::SimulationOptions options;
    options.shape.hollow = true;
    options.core.domain.channels = 4;
    simulation::Simulation sim(options);
    auto file = *sim.file_system().open("/file", {.access = Access::kReadWrite, .create = true});
    EXPECT_TRUE(file->truncate(file_bytes));
    engine::TransferSpec spec;
    spec.files = {file};
    spec.extents = engine::Extents(extents);
    engine::Transfer* transfer = *sim.core().start(std::move(spec));
    EXPECT_TRUE(sim.run(*transfer));
    EXPECT_EQ(transfer->error(), nullptr);
    transfer->release();
    std::vector<std::uint64_t> out;
    sim.core().for_each_domain([&](engine::Domain& domain) {
        for (std::uint32_t i = 0; i < domain.channel_count(); ++i) {
            out.push_back(domain.channel(i).counters().bytes_read.get());
        }
    });
    return out;
}

TEST(Channels, ShareScatteredRowsOfAnyLength) {
    for (const std::uint64_t row_bytes : {64, 1000, 4096, 5000}) {
        for (std::uint64_t seed = 1; seed <= 3; ++seed) {
            std::mt19937_64 random(seed);
            std::vector<std::byte> memory(row_bytes);
            std::vector<Extent> extents;
            for (int i = 0; i < 2000; ++i) {
                extents.push_back({random() % 1'000'000'000, {memory.data(), row_bytes}, 0});
            }
            const auto parts = shares(extents, 2'000'000'000);
            std::uint64_t total = 0;
            for (const std::uint64_t bytes : parts) {
                total += bytes;
            }
            ASSERT_EQ(parts.size(), 4U);
            for (const std::uint64_t bytes : parts) {
                EXPECT_GT(bytes, total / 5) << "rows of " << row_bytes << ", seed " << seed;
            }
        }
    }
}

// Extents of two devices in turns, each adjoining the one before it in its file: every stretch of
// them has to be aligned by itself.
TEST(Channels, DevicesInTurns) {
    FakeSetup setup;
    setup.disks = 2;
    const auto engine = TestEngine::make(EngineKind::kFake, {}, setup);
    TransferRequest request;
    request.write = true;
    for (const char* path : {"/0/file", "/1/file"}) {
        request.files.push_back(
            engine->files().open(path, {.access = Access::kReadWrite, .create = true}));
    }
    const auto data = pattern(2'000'000, 1);
    std::vector<std::vector<std::byte>> models(2);
    for (std::size_t i = 0, at = 0; at + 50'000 < data.size(); ++i) {
        const std::size_t bytes = i % 5 == 4 ? 40'960 : 1'001 * (i % 7 + 1);
        std::vector<std::byte>& model = models[i % 2];
        request.extents.push_back({model.size(),
                                   {const_cast<std::byte*>(data.data()) + at, bytes},
                                   static_cast<std::uint32_t>(i % 2)});
        model.insert(model.end(), data.begin() + static_cast<std::ptrdiff_t>(at),
                     data.begin() + static_cast<std::ptrdiff_t>(at + bytes));
        at += bytes;
    }
    const auto files = request.files;
    EXPECT_EQ(engine->submit(std::move(request))->wait(), models[0].size() + models[1].size());
    for (std::size_t f = 0; f < 2; ++f) {
        EXPECT_TRUE(get_bytes(files[f], 0, models[f].size() + 1) == models[f]) << f;
    }
}

}  // namespace
}  // namespace penstock::suite
