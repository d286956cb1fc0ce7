// SPDX-License-Identifier: Apache-2.0
// Gathers of rows that are not in memory, by FeatureStore.
#include "jobs.hpp"

#include <penstock/feature_store.hpp>
#include <penstock/page_cache.hpp>

#include <algorithm>
#include <span>

namespace penstock::benchmarks {

namespace {

/// A feature file of one table, durable, with none of its pages in the page cache.
void write_table(const std::shared_ptr<Engine>& engine, const std::string& path, std::uint64_t rows,
                 std::uint64_t row) {
    const std::uint64_t step = std::max<std::uint64_t>(1, (4U << 20) / row);
    std::vector<std::byte> block(step * row);
    Random random;
    for (std::byte& byte : block) {
        byte = static_cast<std::byte>(random.below(256));
    }
    FeatureWriter writer(engine, path);
    writer.begin_table({"rows", "U8", {row}});
    for (std::uint64_t begin = 0; begin < rows; begin += step) {
        writer.append(std::span(block).first(std::min(step, rows - begin) * row));
    }
    writer.commit();
    evict(path);
}

}  // namespace

void feature_gather(const Arguments& arguments, Figures& figures) {
    const std::string path = arguments.text("new");
    const std::uint64_t rows = arguments.number("rows");
    const std::uint64_t row = arguments.number("row");
    const std::uint64_t count = arguments.number("count");
    const std::uint64_t gather = arguments.number("gather", 4096);
    const auto engine = std::make_shared<Engine>(Engine::default_options());
    write_table(engine, path, rows, row);
    const FeatureStore store = FeatureStore::open(engine, path);
    const std::vector<std::uint64_t> ids = row_numbers(rows, count, true);
    const Memory out(gather * row);
    // The ring comes with the first transfer.
    store.gather(0, std::span(ids).first(1), {out.data(), row});
    Meter meter;
    meter.start();
    for (std::uint64_t begin = 0; begin < count; begin += gather) {
        const auto some = std::span(ids).subspan(begin, std::min(gather, count - begin));
        store.gather(0, some, {out.data(), some.size() * row});
    }
    meter.stop();
    meter.report(figures, count * row, count);
    note_engine(*engine, figures);
}

}  // namespace penstock::benchmarks
