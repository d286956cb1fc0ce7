// SPDX-License-Identifier: Apache-2.0
// Jobs that count: latency of one read, system calls, instructions, what an engine costs while it
// waits.
#include "jobs.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace penstock::benchmarks {

namespace {

constexpr std::uint64_t kBlock = 4096;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kWindowBlocks = 4096;

/// CPU nanoseconds that all threads but this one have had.
std::uint64_t cpu_of_other_threads_ns() {
    std::uint64_t sum = 0;
    const std::string self = std::to_string(gettid());
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::uint64_t run_ns = 0;
        std::ifstream(task.path() / "schedstat") >> run_ns;
        sum += task.path().filename() == self ? 0 : run_ns;
    }
    return sum;
}

/// VmRSS or VmHWM of this process, KiB.
std::uint64_t memory_kib(const std::string& key) {
    std::ifstream status("/proc/self/status");
    std::string line;
    while (std::getline(status, line)) {
        if (line.rfind(key + ":", 0) == 0) {
            return std::stoull(line.substr(key.size() + 1));
        }
    }
    throw CannotRun("/proc/self/status has no " + key);
}

/// One transfer of the kind that `--what` names, to be counted; `count` operations.
TransferRequest counted_request(const Arguments& arguments, const File& file,
                                const Memory& memory) {
    const std::uint64_t count = arguments.number("count");
    if (arguments.text("what") != "1m") {
        return random_request(file, count, kBlock, memory, kWindowBlocks);
    }
    TransferRequest request;
    request.files = {file};
    const std::uint64_t blocks = file.size() / kMiB;
    for (std::uint64_t i = 0; i < count; ++i) {
        request.extents.push_back({i % blocks * kMiB, {memory.data() + i % 16 * kMiB, kMiB}, 0});
    }
    return request;
}

EngineOptions counted_options(const Arguments& arguments) {
    EngineOptions options = engine_options(arguments);
    options.queue_depth = arguments.text("what") == "1m" ? 16 : 128;
    return options;
}

}  // namespace

void latency(const Arguments& arguments, Figures& figures) {
    const std::string path = arguments.text("path");
    const std::uint64_t count = arguments.number("count");
    const bool plain = arguments.text("api", "engine") == "pread";
    const bool hop = arguments.handicap("hop");
    Memory memory(kBlock);
    Engine engine;
    const File file(path, {.cache = CachePolicy::kDirect});
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        throw CannotRun(path + " takes no direct I/O: " + std::strerror(errno));
    }
    const std::uint64_t blocks = file.size() / kBlock;
    Random random;
    std::vector<double> times;
    times.reserve(count);
    for (std::uint64_t i = 0; i < count + 500; ++i) {
        const std::uint64_t offset = random.below(blocks) * kBlock;
        const double start = now_s();
        if (plain) {
            if (pread(fd, memory.data(), kBlock, static_cast<off_t>(offset)) != kBlock) {
                throw std::runtime_error(path + ": pread came short");
            }
        } else if (hop) {
            engine.read_async(file, {memory.data(), kBlock}, offset).wait();
        } else {
            engine.read(file, {memory.data(), kBlock}, offset);
        }
        if (i >= 500) {
            times.push_back((now_s() - start) * 1e6);
        }
    }
    close(fd);
    figures.set("p50_us", median(times));
    figures.set("operations", count);
    note_engine(engine, figures);
}

void syscalls(const Arguments& arguments, Figures& figures) {
    const std::uint64_t count = arguments.number("count");
    Memory memory(kWindowBlocks * kBlock);
    Meter meter(arguments.number("tracepoint"));  // before the engine: it counts threads made later
    Engine engine(counted_options(arguments));
    const File file(arguments.text("path"), {.cache = CachePolicy::kDirect});
    TransferRequest request = counted_request(arguments, file, memory);
    engine.read_async(file, {memory.data(), kBlock}).wait();
    const EngineStats before = engine.stats();
    meter.start();
    if (arguments.handicap("each")) {
        one_by_one(engine, request);
    } else {
        engine.submit(std::move(request)).wait();
    }
    meter.stop();
    const EngineStats after = engine.stats();
    const std::uint64_t bytes = after.bytes_read - before.bytes_read;
    meter.report(figures, bytes, count);
    figures.set("value", static_cast<double>(meter.system_calls()) / static_cast<double>(count));
    figures.set("told_system_calls", after.system_calls - before.system_calls);
    note_engine(engine, figures);
}

namespace {

void idle_cpu(const Arguments& arguments, Figures& figures, const std::string& path) {
    Memory memory(kBlock);
    Engine engine;
    const File file(path, {.cache = CachePolicy::kDirect});
    engine.read_async(file, {memory.data(), kBlock}).wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it settles
    std::atomic<bool> stop{false};
    std::thread busy;
    if (arguments.handicap("busy")) {
        busy = std::thread([&] {
            while (!stop) {
                engine.read_async(file, {memory.data(), kBlock}).wait();
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
            }
        });
    }
    const std::uint64_t before = cpu_of_other_threads_ns();
    std::this_thread::sleep_for(std::chrono::seconds(2));
    const std::uint64_t after = cpu_of_other_threads_ns();
    stop = true;
    if (busy.joinable()) {
        busy.join();
    }
    figures.set("value", static_cast<double>(after - before) / 1000);
    note_engine(engine, figures);
}

void idle_memory(const Arguments& arguments, Figures& figures, const std::string& path) {
    constexpr std::uint64_t kBytes = 256 * kMiB;
    Memory memory(kBytes, 1);
    EngineOptions options = Engine::default_options();
    if (arguments.handicap("large_slots")) {
        options.in_flight_bytes = kBytes;
        options.queue_depth = 256;
    }
    const File file(path, {.cache = CachePolicy::kDirect});
    const std::uint64_t before = memory_kib("VmRSS");
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak counts from here
    Engine engine(options);
    engine.read(file, {memory.data() - 1, kBytes});  // straight
    engine.read(file, {memory.data(), kBytes});      // through slots
    const std::uint64_t peak = memory_kib("VmHWM");
    figures.set("value", static_cast<double>(peak - before) / 1024);
    figures.set("resident_after_kib", memory_kib("VmRSS") - before);
    note_engine(engine, figures);
}

}  // namespace

void idle(const Arguments& arguments, Figures& figures) {
    if (arguments.text("what") == "cpu") {
        idle_cpu(arguments, figures, arguments.text("path"));
    } else {
        idle_memory(arguments, figures, arguments.text("path"));
    }
}

}  // namespace penstock::benchmarks
