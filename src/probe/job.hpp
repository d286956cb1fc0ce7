// SPDX-License-Identifier: Apache-2.0
// One run of one row on an engine of its own, so that the engine's figures are the run's.
//
//   depth 1, blocks up to inline_bytes_max   blocking calls one after another, each timed
//   sequential, blocks of n * 64 KiB         three long transfers in flight, cut by the engine
//   other sequential                         a window of transfers, a block each
//   random                                   three transfers of many extents in flight
//
// On several targets each transfer has an equal share of each. Depth is the engine's queue_depth:
// more blocks are submitted than that, so that the device never waits for us.
#pragma once

#include "probe/scratch.hpp"
#include "probe/watch.hpp"

#include <penstock/penstock.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::probe {

enum class Rw : std::uint8_t { kRead, kWrite, kRandRead, kRandWrite };

[[nodiscard]] constexpr bool is_write(Rw rw) {
    return rw == Rw::kWrite || rw == Rw::kRandWrite;
}
[[nodiscard]] constexpr bool is_random(Rw rw) {
    return rw == Rw::kRandRead || rw == Rw::kRandWrite;
}

struct JobSpec {
    Rw rw = Rw::kRead;
    std::uint64_t block_bytes = 1 << 20;
    std::uint32_t depth = 16;
};

/// How long a job runs, and on which engine.
struct RunOptions {
    double seconds = 1.5;
    BackendKind backend = BackendKind::kAuto;
    std::uint32_t channels = 1;
    std::int32_t gpu = -1;  ///< the GPU whose memory it is; -1: memory of the host
};

/// The result of one run. Latencies are of a block at the device (depth 1: of the call), in
/// nanoseconds.
struct Sample {
    std::string side;  ///< "penstock" or "fio"
    double seconds = 0;
    std::uint64_t bytes = 0;
    std::uint64_t operations = 0;
    double cpu_s = 0;  ///< user and system, all threads of the job
    std::int64_t p50_ns = 0;
    std::int64_t p99_ns = 0;
    std::int64_t p999_ns = 0;
    std::vector<LatencyBucket> histogram;

    [[nodiscard]] double bytes_per_s() const { return static_cast<double>(bytes) / seconds; }
    [[nodiscard]] double operations_per_s() const {
        return static_cast<double>(operations) / seconds;
    }
    [[nodiscard]] double cpu_s_per_gib() const {
        return cpu_s / (static_cast<double>(bytes) / (1 << 30));
    }
};

/// The engine options that a job is run with.
[[nodiscard]] EngineOptions engine_options(const JobSpec& job, const RunOptions& options);

/// Runs for `options.seconds`. Throws Error and what `watch` throws.
/// Several targets: every transfer has the same bytes of each.
[[nodiscard]] Sample run_job(const JobSpec& job, const RunOptions& options,
                             const std::vector<const Target*>& targets, MemoryPool& pool,
                             Watch& watch);

}  // namespace penstock::probe
