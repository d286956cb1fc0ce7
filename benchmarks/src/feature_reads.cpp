// SPDX-License-Identifier: Apache-2.0
// The reads of a gather, as the store makes them, on the simulator's disks.
#include "features.hpp"
#include "features/gather/gather_request.hpp"
#include "model.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::benchmarks {

features::OpenedFeatures striped_table(std::uint64_t parts, std::uint64_t rows,
                                       std::uint64_t row_bytes) {
    features::OpenedFeatures opened;
    opened.parts.resize(parts);
    opened.directory.tables.push_back({.name = "rows",
                                       .dtype = "U8",
                                       .row_shape = {row_bytes},
                                       .rows = rows,
                                       .row_bytes = row_bytes,
                                       .stride_bytes = row_bytes,
                                       .stripe_rows = 16,
                                       .bases = std::vector<std::uint64_t>(parts)});
    return opened;
}

engine::Extents extents_of_gather(const features::OpenedFeatures& opened,
                                  std::span<const std::uint64_t> ids, penstock::Memory out) {
    features::check_request(opened, {0, ids, out});
    const features::WantedRows wanted{0, ids, {}, out};
    features::RowReads reads;
    features::make_reads(opened, std::span(&wanted, 1), reads);
    return value_of(engine::extents_of(*reads.request.rows, "gather"));
}

void depth(const Arguments& arguments, Figures& figures) {
    constexpr std::uint32_t kDisks = 4;
    constexpr std::uint64_t kRows = 1'000'000;
    constexpr std::uint64_t kTable = std::uint64_t{1} << 26;  // 256 GiB
    constexpr std::uint64_t kRowBytes = 4096;
    simulation::SimulationOptions options = simulation_options(arguments);
    options.disks = kDisks;
    options.core.domain.channel.gap_bytes = 0;  // a request a row, as the bound has it
    simulation::Simulation simulation(options);
    std::vector<std::shared_ptr<os::File>> files;
    for (std::uint32_t i = 0; i < kDisks; ++i) {
        files.push_back(value_of(simulation.file_system().open(
            "/" + std::to_string(i) + "/data", {.access = Access::kReadWrite, .create = true})));
        if (const auto result = files[i]->truncate(kTable / kDisks * kRowBytes); !result) {
            throw std::runtime_error(result.error().message);
        }
    }
    const features::OpenedFeatures opened = striped_table(kDisks, kTable, kRowBytes);
    const Addresses memory(kRows * kRowBytes);
    std::vector<std::uint64_t> ids(kRows);
    Random random;
    for (std::uint64_t& id : ids) {
        id = random.below(kTable);
    }
    const std::uint64_t step = arguments.handicap("wait_512") ? 512 : kRows;
    const base::Nanos start = simulation.now();
    for (std::uint64_t begin = 0; begin < kRows; begin += step) {
        const auto some = std::span(ids).subspan(begin, std::min(step, kRows - begin));
        engine::TransferSpec spec;
        for (const auto& file : files) {
            spec.files.push_back(file);
        }
        spec.extents = extents_of_gather(opened, some,
                                         {memory.at(begin * kRowBytes), some.size() * kRowBytes});
        run_to_its_end(simulation, std::move(spec));
    }
    const auto taken = static_cast<double>(simulation.now() - start);
    figures.set("value", bound_ns(kRows / kDisks * kRowBytes, kRows / kDisks) / taken);
    figures.set("seconds", taken * 1e-9);
    figures.set("operations", kRows);
}

}  // namespace penstock::benchmarks
