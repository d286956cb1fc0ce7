// SPDX-License-Identifier: Apache-2.0
// Jobs on the memory of a GPU, a real one or the fake.
#include "gpu.hpp"
#include "jobs.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

namespace penstock::benchmarks {

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kBlock = 4096;

File open_file(const std::string& path, bool write) {
    return write
               ? File(path,
                      {.access = Access::kReadWrite, .create = true, .cache = CachePolicy::kDirect})
               : File(path, {.cache = CachePolicy::kDirect});
}

/// Waits for nothing: fewer slots than that are a handicap.
EngineOptions device_options(const Arguments& arguments) {
    EngineOptions options = Engine::default_options();
    const std::string way = arguments.text("gpu_path", "auto");
    options.gpu_path = way == "bounce"   ? GpuPath::kBounce
                       : way == "cufile" ? GpuPath::kCuFile
                                         : GpuPath::kAuto;
    if (arguments.handicap("one_slot")) {
        options.in_flight_bytes = options.block_bytes;
    }
    return options;
}

void move(Engine& engine, const File& file, bool write, AnyMemory memory, std::uint64_t offset) {
    if (write) {
        engine.write(file, memory, offset);
    } else {
        engine.read(file, memory, offset);
    }
}

AnyMemory part(const AnyMemory& memory, std::uint64_t at, std::uint64_t bytes) {
    return {memory.data + at, std::min(bytes, memory.bytes - at), memory.kind, memory.device};
}

/// Blocks one after another, each waited for, and a millisecond.
void wait_for_each(Engine& engine, const File& file, bool write, const AnyMemory& memory) {
    for (std::uint64_t at = 0; at < memory.bytes; at += kMiB) {
        move(engine, file, write, part(memory, at, kMiB), at);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

/// Memory of a GPU or of the host, as --memory says; the first transfers are done, so that rings,
/// threads and pinned slots are there.
struct Target {
    explicit Target(const Arguments& arguments)
        : write(arguments.text("op", "read") == "write"),
          bytes(arguments.number("bytes")),
          path(arguments.text("path")) {
        if (arguments.text("memory", "gpu") == "host") {
            host.emplace(bytes);
            memory = {host->data(), bytes};
        } else {
            gpu = std::make_unique<Gpu>(arguments);
            memory = gpu->allocate(bytes);
        }
        if (arguments.text("gpu_path", "auto") == "cufile") {
            need_cufile();
        }
        EngineOptions options = device_options(arguments);
        file = open_file(path, write);
        engine.emplace(options);
        warm_up();
        if (arguments.handicap("other_way")) {
            need_cufile();
            options.gpu_path =
                engine->stats().cufile_bytes > 0 ? GpuPath::kBounce : GpuPath::kCuFile;
            engine.emplace(options);
            warm_up();
        }
    }

    void warm_up() { move(*engine, file, write, part(memory, 0, 48 * kMiB), 0); }

    /// Throws CannotRun without cuFile: there is no choice to make.
    void need_cufile() const {
        const CuFileReport report = cufile_conditions(gpus().gpus.at(0), path);
        if (!report.usable) {
            throw CannotRun("cuFile cannot be used here: " +
                            (report.reasons.empty() ? std::string("no reason is known")
                                                    : report.reasons.front()));
        }
    }

    bool write;
    std::uint64_t bytes;
    std::string path;
    std::unique_ptr<Gpu> gpu;
    std::optional<Memory> host;
    AnyMemory memory;
    std::optional<Engine> engine;  // its end waits for copies, so it comes before memory goes
    File file;
};

void through_host(Engine& engine, Gpu& gpu, const File& file, bool write, const AnyMemory& memory,
                  std::uint64_t offset) {
    Memory host(memory.bytes, 1);
    if (write) {
        gpu.copy(memory.data, host.data(), memory.bytes, false);
    }
    move(engine, file, write, {host.data(), memory.bytes}, offset);
    if (!write) {
        gpu.copy(memory.data, host.data(), memory.bytes, true);
    }
}

/// Reads and writes at odd places, of one piece and of many.
void odd_transfers(const Arguments& arguments, Engine& engine, Gpu& gpu, const AnyMemory& memory) {
    const File from(arguments.text("path"), {.cache = CachePolicy::kDirect});
    const File to = open_file(arguments.text("new"), true);
    const bool host = arguments.handicap("through_host");
    const bool synchronise = arguments.handicap("synchronise");
    for (const bool write : {false, true}) {
        const File& file = write ? to : from;
        for (const std::uint64_t odd : {std::uint64_t{0}, std::uint64_t{777}}) {
            const AnyMemory piece = part(memory, odd, memory.bytes - odd);
            if (host) {
                through_host(engine, gpu, file, write, piece, odd);
            } else {
                move(engine, file, write, piece, odd);
            }
            if (synchronise) {
                gpu.synchronise();
            }
        }
        TransferRequest scattered;
        scattered.write = write;
        scattered.files = {file};
        for (std::uint64_t i = 0; i < 1000; ++i) {
            scattered.extents.push_back({i * 7001, part(memory, i * 5003, 3001), 0});
        }
        engine.submit(std::move(scattered)).wait();
    }
}

}  // namespace

void device_transfer(const Arguments& arguments, Figures& figures) {
    Target target(arguments);
    const bool each = arguments.handicap("wait_each_1ms");
    const bool copy = arguments.handicap("copy");
    const Memory second(copy ? target.bytes : kBlock);
    const Memory third(copy ? target.bytes : kBlock);
    const double fake_before = target.gpu ? target.gpu->fake_cpu_s() : 0;
    Meter meter;
    meter.start();
    if (each) {
        wait_for_each(*target.engine, target.file, target.write, target.memory);
    } else {
        move(*target.engine, target.file, target.write, target.memory, 0);
    }
    if (copy) {
        std::memcpy(second.data(), third.data(), target.bytes);
    }
    meter.stop();
    double fake_cpu_s = 0;
    if (target.gpu) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // its threads count, then sleep
        fake_cpu_s = target.gpu->fake_cpu_s() - fake_before;
        target.gpu->report(figures);
    }
    figures.set("seconds", meter.seconds());
    figures.set("bytes", target.bytes);
    figures.set("operations", std::uint64_t{1});
    figures.set("cpu_s", meter.cpu_s() - fake_cpu_s);
    figures.set("fake_cpu_s", fake_cpu_s);
    figures.set("cufile_bytes", target.engine->stats().cufile_bytes);
    note_engine(*target.engine, figures);
}

void device_counts(const Arguments& arguments, Figures& figures) {
    const std::string what = arguments.text("what");
    Gpu gpu(arguments);
    if (!gpu.fake()) {
        throw CannotRun("the counts are the fake driver's");
    }
    const AnyMemory memory = gpu.allocate(arguments.number("bytes"));
    EngineOptions options = Engine::default_options();
    if (what == "pinned") {  // as much in flight as anybody may ask for
        options.in_flight_bytes = 256 * kMiB;
        options.queue_depth = 256;
    }
    if (what == "syncs") {  // more requests of the same bytes
        options.block_bytes = 64 << 10;
    }
    Engine engine(options);
    gpu.fake()->reset_counters();
    do {
        odd_transfers(arguments, engine, gpu, memory);
    } while (engine.stats().requests < arguments.number("requests", 0));
    if (arguments.handicap("two_engines")) {
        Engine second(options);
        odd_transfers(arguments, second, gpu, memory);
    }
    const FakeGpuCounters counted = gpu.fake()->counters();
    const EngineStats stats = engine.stats();
    if (what == "copies") {
        figures.set("value", stats.copied_bytes + counted.unpinned_async_bytes);
    } else if (what == "syncs") {
        figures.set("value", counted.synchronizations + counted.frees_that_waited +
                                 counted.unpinned_async_copies);
    } else if (what == "pinned") {
        figures.set("value", static_cast<double>(counted.pinned_bytes_max) / kMiB);
    } else {
        throw std::invalid_argument("--what=" + what + "; expected copies, syncs or pinned");
    }
    figures.set("bytes", counted.bytes_in + counted.bytes_out);
    figures.set("operations", stats.requests);
    gpu.report(figures);
    note_engine(engine, figures);
}

void device_bound(const Arguments& arguments, Figures& figures) {
    Target target(arguments);
    const Memory host(target.bytes);
    const bool each = arguments.handicap("wait_each_1ms");
    const std::uint64_t turns = arguments.number("turns", 3);
    std::vector<double> disk;
    std::vector<double> copies;
    std::vector<double> ours;
    for (std::uint64_t turn = 0; turn < turns; ++turn) {
        double start = now_s();
        move(*target.engine, target.file, target.write, {host.data(), target.bytes}, 0);
        disk.push_back(now_s() - start);
        copies.push_back(target.gpu->copy_seconds(target.bytes, kMiB, !target.write));
        start = now_s();
        if (each) {
            wait_for_each(*target.engine, target.file, target.write, target.memory);
        } else {
            move(*target.engine, target.file, target.write, target.memory, 0);
        }
        ours.push_back(now_s() - start);
    }
    const auto rate = [&](const std::vector<double>& seconds) {
        return static_cast<double>(target.bytes) / median(seconds);
    };
    figures.set("value", rate(ours) / std::min(rate(disk), rate(copies)));
    figures.set("seconds", median(ours));
    figures.set("bytes", target.bytes);
    figures.set("disk_bytes_per_s", rate(disk));
    figures.set("copy_bytes_per_s", rate(copies));
    target.gpu->report(figures);
    note_engine(*target.engine, figures);
}

void device_latency(const Arguments& arguments, Figures& figures) {
    const std::string path = arguments.text("path");
    const std::uint64_t count = arguments.number("count");
    const bool plain = arguments.text("api", "engine") == "plain";
    const bool hop = arguments.handicap("hop");
    Gpu gpu(arguments);
    const AnyMemory memory = gpu.allocate(kBlock);
    Memory host(kBlock);
    gpu.pin(host.data(), kBlock);
    Engine engine;
    const File file(path, {.cache = CachePolicy::kDirect});
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        throw CannotRun(path + " takes no direct I/O: " + std::strerror(errno));
    }
    const std::uint64_t blocks = file.size() / kBlock;
    Random random;
    std::vector<double> times;
    for (std::uint64_t i = 0; i < count + 100; ++i) {
        const std::uint64_t offset = random.below(blocks) * kBlock;
        const double start = now_s();
        if (plain) {
            if (pread(fd, host.data(), kBlock, static_cast<off_t>(offset)) != kBlock) {
                throw std::runtime_error(path + ": pread came short");
            }
            gpu.copy_after_event(memory.data, host.data(), kBlock);
        } else if (hop) {
            std::thread([&] { move(engine, file, false, memory, offset); }).join();
        } else {
            move(engine, file, false, memory, offset);
        }
        if (i >= 100) {
            times.push_back((now_s() - start) * 1e6);
        }
    }
    close(fd);
    figures.set("p50_us", median(times));
    figures.set("operations", count);
    gpu.report(figures);
    note_engine(engine, figures);
}

}  // namespace penstock::benchmarks
