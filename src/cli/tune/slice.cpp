// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/slice.hpp"

#include "base/align.hpp"
#include "base/clock.hpp"
#include "base/text/units.hpp"
#include "base/wait_slice.hpp"
#include "probe/statistics.hpp"
#include "report/interrupt.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::cli {

namespace {

constexpr std::uint64_t kMemoryBytes = std::uint64_t{128} << 20;
constexpr std::uint64_t kSliceMax = std::uint64_t{512} << 20;
constexpr std::uint64_t kWriteSlices = 64;  // that a limit on bytes leaves room for, if it can

constexpr std::uint64_t kSmallBytes = 4096;
constexpr std::size_t kSmallReadsMin = 256;  // of a disk that turns: a second or two
constexpr std::size_t kSmallReadsMax = 8192;
constexpr double kSmallSeconds = 0.1;
constexpr int kGapRounds = 5;
constexpr std::uint64_t kGapMax = 4 << 20;

double cpu_seconds() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

Slices::Slices(const Target& target, const EngineOptions& defaults, report::Progress& progress)
    : target_(target),
      defaults_(defaults),
      progress_(progress),
      memory_(pool_.take(std::min(kMemoryBytes, target.bytes / kGrain * kGrain))),
      written_bytes_(target.ours ? target.bytes : 0) {
    probe::fill_random(memory_.bytes(), 2);
}

void Slices::calibrate(bool write, double seconds, std::uint64_t write_limit) {
    std::uint64_t& bytes = write ? write_bytes_ : read_bytes_;
    const TuneSettings settings = default_settings(defaults_);
    static_cast<void>(run(settings, write));  // the first one finds the device idle
    const double wanted = run(settings, write).bytes_per_s() * seconds;
    std::uint64_t most = kSliceMax;
    if (write) {
        const std::uint64_t left = write_limit - std::min(write_limit, written_bytes_);
        most = std::clamp(left / kWriteSlices / kGrain * kGrain, kSliceLeast, kSliceMax);
    }
    bytes = std::clamp(static_cast<std::uint64_t>(wanted) / kGrain * kGrain, kSliceLeast, most);
}

// The next `bytes` of the file, wrapping around at the end, through the same memory.
TransferRequest Slices::request(std::uint64_t bytes, bool write, const Memory& memory) {
    TransferRequest request;
    request.write = write;
    request.options.allow_overlap = write;  // a long slice wraps around to its own bytes
    request.files = {target_.file};
    const std::uint64_t end = target_.bytes / kGrain * kGrain;
    while (bytes > 0) {
        const std::uint64_t count = std::min({bytes, memory.bytes, end - cursor_});
        request.extents.push_back(
            {.offset = cursor_, .memory = {memory.data, count, memory.kind, memory.device}});
        cursor_ = (cursor_ + count) % end;
        bytes -= count;
    }
    return request;
}

Sample Slices::run(const TuneSettings& settings, bool write) {
    return run(engine_options(settings, defaults_), memory_.bytes(), write);
}

Sample Slices::run(const EngineOptions& options, const Memory& memory, bool write) {
    Engine engine(options);
    // Starts the threads and rings, which come with the first transfer; on a GPU also what cuFile
    // opens, which takes more than a small one.
    const std::uint64_t first = memory.kind == MemoryKind::kHost ? 4096 : kGrain;
    engine.read_async(target_.file, {memory.data, first, memory.kind, memory.device}, cursor_)
        .wait();
    const TuneSettings settings = default_settings(options);
    Sample sample = measured(engine, request(slice_bytes(write), write, memory),
                             to_string(settings) + (write ? ", writing" : ", reading"));
    sample.operations = sample.bytes / settings.block_bytes;
    written_bytes_ += write ? sample.bytes : 0;
    return sample;
}

// Each rate of large requests is held against small ones at the same time.
std::uint64_t Slices::gap_bytes(const TuneSettings& settings) {
    const double first_s = small_read_s(settings, kSmallReadsMin);
    const auto count = static_cast<std::size_t>(
        std::clamp(kSmallSeconds / first_s, double{kSmallReadsMin}, double{kSmallReadsMax}));
    const bool slow = first_s * static_cast<double>(count) > 1;
    std::vector<double> gaps;
    for (int round = 0; round < (slow ? 1 : kGapRounds); ++round) {
        const double bytes_per_s = run(settings, false).bytes_per_s();
        gaps.push_back(small_read_s(settings, count) * bytes_per_s - double{kSmallBytes});
    }
    const auto gap =
        static_cast<std::uint64_t>(std::clamp(probe::median(gaps), 0.0, double{kGapMax}));
    return base::align_up(gap, std::uint64_t{base::kKiB});
}

TransferRequest Slices::small_reads(std::size_t count) {
    TransferRequest request;
    request.files = {target_.file};
    for (std::size_t i = 0; i < count; ++i) {
        request.extents.push_back(
            {.offset = random_() % (target_.bytes / kSmallBytes) * kSmallBytes,
             .memory = memory_.bytes().subspan(i * kSmallBytes, kSmallBytes)});
    }
    return request;
}

double Slices::small_read_s(const TuneSettings& settings, std::size_t count) {
    EngineOptions options = engine_options(settings, defaults_);
    options.gap_bytes = 0;
    Engine engine(options);
    engine.read_async(target_.file, memory_.bytes().first(kSmallBytes), cursor_).wait();
    return measured(engine, small_reads(count), "small reads").seconds / static_cast<double>(count);
}

Sample Slices::measured(Engine& engine, TransferRequest wanted, const std::string& what) {
    Sample sample;
    sample.side = "penstock";
    const base::SteadyClock clock;
    const double cpu_before = cpu_seconds();
    const base::Nanos start = clock.now();
    Transfer transfer = engine.submit(std::move(wanted));
    std::optional<std::uint64_t> moved;
    try {
        while (!moved) {
            report::check_interrupt();
            moved = transfer.wait_for(base::kWaitSlice);
            if (!moved && progress_.due()) {
                progress_.show(what);
            }
        }
    } catch (const report::Interrupted&) {
        transfer.cancel();
        throw;  // the engine's destructor waits for the device before the memory is freed
    }
    sample.seconds = static_cast<double>(clock.now() - start) * 1e-9;
    sample.cpu_s = cpu_seconds() - cpu_before;
    sample.bytes = *moved;
    const LatencyStats latency = engine.stats().latency;
    sample.p50_ns = latency.p50;
    sample.p99_ns = latency.p99;
    sample.p999_ns = latency.p999;
    sample.histogram = latency.histogram;
    return sample;
}

}  // namespace penstock::cli
