// SPDX-License-Identifier: Apache-2.0
// Rows that are not in memory, by FeatureStore: gathers, and one at a time by a ring.
#include "jobs.hpp"

#include <penstock/features.hpp>
#include <penstock/memory.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

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

namespace {

// The part of one thread: so many rows are asked for before the first is waited for. A byte of each
// is read.
std::uint64_t ask(const device::Array<std::byte>& rows, std::span<const std::uint64_t> ids,
                  std::size_t held) {
    std::vector<device::Loading> asked(held);
    std::uint64_t missing = 0;
    const auto collect = [&](device::Loading& loading) {
        const bool there = rows.wait(loading, device::kNoLimit) == device::RowStatus::kReady;
        static_cast<void>(there && *static_cast<const volatile std::byte*>(rows.row(loading)) ==
                                       std::byte{0});
        missing += there ? 0 : 1;
        rows.release(loading);
    };
    for (std::size_t i = 0; i < ids.size(); ++i) {
        device::Loading& next = asked[i % held];
        if (i >= held) {
            collect(next);
        }
        next = rows.load_async(ids[i], device::kNoLimit);
    }
    for (std::size_t i = ids.size() < held ? 0 : ids.size() - held; i < ids.size(); ++i) {
        collect(asked[i % held]);
    }
    return missing;
}

}  // namespace

void feature_ring(const Arguments& arguments, Figures& figures) {
    const std::string path = arguments.text("new");
    const std::uint64_t rows = arguments.number("rows");
    const std::uint64_t row = arguments.number("row");
    const bool one = arguments.handicap("one_request");
    // Rates are compared, and one request at a time takes its time.
    const std::uint64_t count = arguments.number("count") / (one ? 50 : 1);
    const std::uint64_t threads = arguments.number("threads", 64);
    const std::uint64_t held = arguments.number("held", 8);
    RowServerOptions options;
    options.slots = one ? 1 : 1024;
    const auto engine = std::make_shared<Engine>(Engine::default_options());
    write_table(engine, path, rows, row);
    const auto store = std::make_shared<FeatureStore>(FeatureStore::open(engine, path));
    const std::vector<std::uint64_t> ids = row_numbers(rows, count, true);
    RowServer server(store, 0, options);
    const auto array = server.array<std::byte>();
    std::atomic<std::uint64_t> missing{ask(array, std::span(ids).first(1), 1)};
    const std::uint64_t share = (count + threads - 1) / threads;
    Meter meter;
    meter.start();
    std::vector<std::thread> warps;
    for (std::uint64_t begin = 0; begin < count; begin += share) {
        warps.emplace_back([&, begin] {
            // The holder of a slot asks for no other where there is but one.
            missing += ask(array, std::span(ids).subspan(begin, std::min(share, count - begin)),
                           one ? 1 : held);
        });
    }
    for (std::thread& warp : warps) {
        warp.join();
    }
    meter.stop();
    server.stop();
    if (missing != 0) {
        throw std::runtime_error("rows did not come");
    }
    meter.report(figures, count * row, count);
    figures.set("gathers", server.stats().batches);
    note_engine(*engine, figures);
}

}  // namespace penstock::benchmarks
