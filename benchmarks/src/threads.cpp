// SPDX-License-Identifier: Apache-2.0
// Threads that each read a block at a random place, one after the other, as data loaders do.
#include "jobs.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace penstock::benchmarks {

namespace {

constexpr std::uint64_t kBlock = 4096;
constexpr std::size_t kFourLanes = 4;

class Direct {
public:
    explicit Direct(const std::string& path)
        : fd_(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)) {
        if (fd_ < 0) {
            throw std::runtime_error("threads: cannot open " + path + " with O_DIRECT");
        }
    }
    Direct(const Direct&) = delete;
    Direct& operator=(const Direct&) = delete;
    ~Direct() { ::close(fd_); }
    void read(std::byte* into, std::uint64_t offset) const {
        const iovec piece{into, kBlock};
        if (::preadv(fd_, &piece, 1, static_cast<off_t>(offset)) != kBlock) {
            throw std::runtime_error("threads: preadv failed");
        }
    }

private:
    int fd_;
};

}  // namespace

void threads(const Arguments& arguments, Figures& figures) {
    const std::string path = arguments.text("path");
    const std::size_t count = arguments.number("threads");
    const double seconds = static_cast<double>(arguments.number("milliseconds", 600)) / 1000;
    const bool ours = arguments.text("api", "engine") == "engine";
    const bool four_lanes = arguments.handicap("four_lanes");
    const File file(path, {.cache = CachePolicy::kDirect});
    const Direct direct(path);
    const Memory memory(count * kBlock);
    Engine engine;
    const std::uint64_t blocks = file.size() / kBlock;
    std::atomic<bool> stop{false};
    std::vector<std::vector<double>> times(count);
    const auto read = [&](std::size_t thread, std::uint64_t offset) {
        std::byte* const into = memory.data() + thread * kBlock;
        if (!ours) {
            direct.read(into, offset);
        } else if (four_lanes && thread >= kFourLanes) {
            engine.read_async(file, {into, kBlock}, offset).wait();
        } else {
            engine.read(file, {into, kBlock}, offset);
        }
    };
    read(0, 0);
    std::vector<std::thread> all;
    Meter meter;
    meter.start();
    for (std::size_t i = 0; i < count; ++i) {
        all.emplace_back([&, i] {
            std::uint64_t state = 0x9e3779b97f4a7c15 * (i + 1);
            while (!stop.load(std::memory_order_relaxed)) {
                state = state * 6364136223846793005 + 1442695040888963407;
                const double start = now_s();
                read(i, (state >> 20) % blocks * kBlock);
                times[i].push_back(now_s() - start);
            }
        });
    }
    const double end = now_s() + seconds;
    while (now_s() < end) {
        ::usleep(10'000);
    }
    stop.store(true);
    for (std::thread& one : all) {
        one.join();
    }
    meter.stop();
    std::vector<double> together;
    for (const std::vector<double>& some : times) {
        together.insert(together.end(), some.begin(), some.end());
    }
    std::sort(together.begin(), together.end());
    meter.report(figures, together.size() * kBlock, together.size());
    figures.set("p50_us", together[together.size() / 2] * 1e6);
    figures.set("p99_us", together[together.size() * 99 / 100] * 1e6);
    figures.set("inline_requests", engine.stats().inline_requests);
    note_engine(engine, figures);
}

}  // namespace penstock::benchmarks
