// SPDX-License-Identifier: Apache-2.0
// Jobs that move many bytes: one long transfer, many random reads, many small tensors.
#include "jobs.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

namespace penstock::benchmarks {

namespace {

constexpr std::uint64_t kWindowBlocks = 4096;

/// The ring and the thread come with the first transfer; fio makes its own before its clock starts.
void warm_up(Engine& engine, const std::string& path) {
    Memory memory(4096);
    engine.read_async(path, {memory.data(), 4096}).wait();
}

void in_turns_with_delay(Engine& engine, const File& file, bool write, std::byte* data,
                         std::uint64_t bytes, std::uint64_t block) {
    for (std::uint64_t offset = 0; offset < bytes; offset += block) {
        if (write) {
            engine.write(file, {data + offset, block}, offset);
        } else {
            engine.read(file, {data + offset, block}, offset);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

/// The handicap of a needless copy: `bytes` of them, `window` at a time.
void copy_all(Memory& to, Memory& from, std::uint64_t bytes, std::uint64_t window) {
    for (std::uint64_t at = 0; at < bytes; at += window) {
        std::memcpy(to.data(), from.data(), window);
    }
}

void each_by_system_call(const std::string& path, bool write, const std::vector<Extent>& extents) {
    const int fd = open(path.c_str(), (write ? O_WRONLY : O_RDONLY) | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        throw CannotRun(path + ": " + std::strerror(errno));
    }
    for (const Extent& extent : extents) {
        const auto offset = static_cast<off_t>(extent.offset);
        const ssize_t moved = write ? pwrite(fd, extent.memory.data, extent.memory.bytes, offset)
                                    : pread(fd, extent.memory.data, extent.memory.bytes, offset);
        if (moved != static_cast<ssize_t>(extent.memory.bytes)) {
            throw std::runtime_error(path + ": a plain system call moved " + std::to_string(moved));
        }
    }
    close(fd);
}

}  // namespace

EngineOptions engine_options(const Arguments& arguments) {
    EngineOptions options = Engine::default_options();
    options.queue_depth =
        static_cast<std::uint32_t>(arguments.number("depth", options.queue_depth));
    options.block_bytes =
        static_cast<std::uint32_t>(arguments.number("engine_block", options.block_bytes));
    options.gap_bytes = arguments.number("gap_bytes", 0);  // a request a block, as fio makes them
    if (arguments.text("backend", "") == "uring") {
        options.backend = BackendKind::kUring;
    }
    if (arguments.handicap("depth1")) {
        options.queue_depth = 1;
    }
    return options;
}

TransferRequest random_request(const File& file, std::uint64_t count, std::uint64_t block,
                               const Memory& memory, std::uint64_t window) {
    TransferRequest request;
    request.files = {file};
    request.extents.reserve(count);
    const std::uint64_t blocks = file.size() / block;
    Random random;
    for (std::uint64_t i = 0; i < count; ++i) {
        request.extents.push_back(
            {random.below(blocks) * block, {memory.data() + i % window * block, block}, 0});
    }
    return request;
}

void one_by_one(Engine& engine, const TransferRequest& request) {
    for (const Extent& extent : request.extents) {
        engine.read_async(request.files[0], extent.memory, extent.offset).wait();
    }
}

std::vector<std::uint64_t> row_numbers(std::uint64_t rows, std::uint64_t count, bool distinct) {
    Random random;
    std::vector<std::uint64_t> ids(distinct ? rows : count);
    std::iota(ids.begin(), ids.end(), 0);
    for (std::uint64_t i = 0; i < count; ++i) {
        if (distinct) {
            std::swap(ids.at(i), ids.at(i + random.below(rows - i)));
        } else {
            ids[i] = random.below(rows);
        }
    }
    ids.resize(count);
    return ids;
}

void note_engine(const Engine& engine, Figures& figures) {
    const EngineDescription description = engine.describe();
    const EngineStats stats = engine.stats();
    figures.set("version", std::string(PENSTOCK_VERSION));
    figures.set("backend", description.backend);
    figures.set("backend_detail", description.detail);
    figures.set("requests", stats.requests);
    figures.set("retries", stats.retries);
    figures.set("copied_bytes", stats.copied_bytes);
    figures.set("engine_system_calls", stats.system_calls);
}

void sequential(const Arguments& arguments, Figures& figures) {
    const bool write = arguments.text("op") == "write";
    const std::string path = arguments.text("path");
    const std::uint64_t bytes = arguments.number("bytes");
    const std::uint64_t block = arguments.number("block");
    const bool copy = arguments.handicap("copy");
    // `window`: bytes of memory that the blocks take in turns, as fio's do: on a device that is
    // memory, what lies in the cache moves faster.
    const std::uint64_t window = arguments.number("window", bytes);
    Memory memory(window, arguments.number("shift", 0));
    Memory second(copy ? window : 4096);
    EngineOptions options = engine_options(arguments);
    options.block_bytes = static_cast<std::uint32_t>(block);
    options.in_flight_bytes = block * options.queue_depth;
    Engine engine(options);
    File file;
    if (write) {
        // A new file counts from before it is there, what exists from when it is open, as with fio.
        const bool is_new = access(path.c_str(), F_OK) != 0;
        file = File(path,
                    {.access = Access::kReadWrite, .create = true, .cache = CachePolicy::kDirect});
        if (!is_new) {
            warm_up(engine, path);
        }
    } else {
        file = File(path, {.cache = CachePolicy::kDirect});
        warm_up(engine, path);
    }
    Meter meter;
    meter.start();
    if (copy && write) {
        copy_all(memory, second, bytes, window);
    }
    if (arguments.handicap("delay_1ms")) {
        in_turns_with_delay(engine, file, write, memory.data(), bytes, block);
    } else {
        TransferRequest request;
        request.write = write;
        request.files = {file};
        for (std::uint64_t at = 0; at < bytes; at += window) {
            request.extents.push_back({at, {memory.data(), std::min(window, bytes - at)}, 0});
        }
        engine.run(std::move(request)).wait();
    }
    if (copy && !write) {
        copy_all(second, memory, bytes, window);
    }
    meter.stop();
    meter.report(figures, bytes, bytes / block);
    note_engine(engine, figures);
}

void random_rows(const Arguments& arguments, Figures& figures) {
    const std::uint64_t count = arguments.number("count");
    const std::uint64_t block = arguments.number("block");
    const std::uint64_t transfer = arguments.number("transfer", count);  // rows in one
    constexpr std::uint64_t kWindow = 4096;                              // places, taken in turns
    const File file(arguments.text("path"),
                    {.cache = arguments.text("cache", "direct") == "auto" ? CachePolicy::kAuto
                                                                          : CachePolicy::kDirect});
    const Memory plain(kWindow * block);
    const bool pooled =
        arguments.text("memory", "plain") == "pool" && !arguments.handicap("nothing_registered");
    const Buffer buffer = pooled ? MemoryPool().take(kWindow * block) : Buffer();
    std::byte* const memory = pooled ? buffer.data() : plain.data();
    const std::vector<std::uint64_t> ids =
        row_numbers(file.size() / block, count, arguments.number("distinct", 0) != 0);
    std::vector<std::uint64_t> destinations(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        destinations[i] = i % kWindow;
    }
    EngineOptions options = Engine::default_options();
    options.gap_bytes = arguments.number("gap_bytes", options.gap_bytes);
    Engine engine(options);
    warm_up(engine, arguments.text("path"));
    Meter meter;
    meter.start();
    for (std::uint64_t begin = 0; begin < count; begin += transfer) {
        const std::uint64_t some = std::min(transfer, count - begin);
        TransferRequest request;
        request.files = {file};
        request.rows = Rows{.tables = {{.row_bytes = block}},
                            .ids = std::span(ids).subspan(begin, some),
                            .destinations = std::span(destinations).subspan(begin, some),
                            .memory = {memory, kWindow * block}};
        engine.run(std::move(request)).wait();
    }
    meter.stop();
    meter.report(figures, count * block, count);
    figures.set("registered_requests", engine.stats().registered_requests);
    note_engine(engine, figures);
}

void random_reads(const Arguments& arguments, Figures& figures) {
    const std::string path = arguments.text("path");
    const std::uint64_t count = arguments.number("count");
    const std::uint64_t block = arguments.number("block");
    Memory memory(kWindowBlocks * block);
    Engine engine(engine_options(arguments));
    const File file(path, {.cache = CachePolicy::kDirect});
    TransferRequest request = random_request(file, count, block, memory, kWindowBlocks);
    warm_up(engine, path);
    Meter meter;
    meter.start();
    if (arguments.handicap("each")) {
        one_by_one(engine, request);
    } else {
        engine.submit(std::move(request)).wait();
    }
    meter.stop();
    meter.report(figures, count * block, count);
    note_engine(engine, figures);
}

void many_small(const Arguments& arguments, Figures& figures) {
    const bool write = arguments.text("op") == "write";
    const std::string path = arguments.text("path");
    const std::uint64_t count = arguments.number("count");
    const std::uint64_t block = arguments.number("block");
    const std::uint64_t apart = block + 4096;  // so that tensors adjoin in the file, not in memory
    Memory memory(count * apart);
    TransferRequest request;
    request.write = write;
    for (std::uint64_t i = 0; i < count; ++i) {
        request.extents.push_back({i * block, {memory.data() + i * apart, block}, 0});
    }
    Engine engine;
    File file(path, {.access = Access::kReadWrite, .create = true, .cache = CachePolicy::kDirect});
    if (file.size() < count * block) {  // the first run of either side; the others find it laid out
        engine.write(file, {memory.data(), count * block});
        file.sync();
    }
    request.files = {file};
    Meter meter;
    warm_up(engine, path);
    meter.start();
    if (arguments.text("api", "engine") == "pread") {
        each_by_system_call(path, write, request.extents);
    } else if (arguments.handicap("each")) {
        for (const Extent& extent : request.extents) {
            TransferRequest one;
            one.write = write;
            one.files = {file};
            one.extents = {extent};
            engine.run(std::move(one)).wait();
        }
    } else {
        engine.run(std::move(request)).wait();
    }
    meter.stop();
    meter.report(figures, count * block, count);
    note_engine(engine, figures);
}

}  // namespace penstock::benchmarks
