// SPDX-License-Identifier: Apache-2.0
#include "api/statistics.hpp"

#include "base/histogram.hpp"
#include "base/text/units.hpp"
#include "device/cuda/driver.hpp"
#include "engine/device_path/device_path.hpp"
#include "os/page_cache.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <vector>

namespace penstock {

namespace api {

namespace {

using Latencies = std::array<std::uint64_t, base::Histogram::kBuckets>;

// The largest latency of the bucket in which `share` of all requests is reached.
std::int64_t percentile(const Latencies& counts, std::uint64_t total, double share) {
    const auto wanted = static_cast<std::uint64_t>(static_cast<double>(total) * share);
    std::uint64_t seen = 0;
    std::int64_t last = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        if (counts[i] == 0) {
            continue;
        }
        seen += counts[i];
        last = base::Histogram::upper_bound(i);
        if (seen > wanted) {
            return last;
        }
    }
    return last;
}

std::vector<LatencyBucket> histogram(const Latencies& counts) {
    std::vector<LatencyBucket> buckets;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        if (counts[i] != 0) {
            buckets.push_back({base::Histogram::upper_bound(i), counts[i]});
        }
    }
    return buckets;
}

std::string why_refused(int system_errno) {
    if (system_errno == 0) {
        return {};
    }
    const char* const cure =
        system_errno == ENOMEM
            ? "; raise the limit on locked memory ('ulimit -l unlimited', LimitMEMLOCK=infinity)"
        : system_errno == EINVAL ? "; it takes Linux 5.13 or newer"
                                 : "";
    return fmt::format("memory is not registered with the kernel: {} (errno {}){}",
                       std::generic_category().message(system_errno), system_errno, cure);
}

void add_counters(EngineStats& stats, Latencies& latencies, const engine::Counters& counters) {
    stats.bytes_read += counters.bytes_read.get();
    stats.bytes_written += counters.bytes_written.get();
    stats.requests += counters.requests.get();
    stats.retries += counters.retries.get();
    stats.slot_requests += counters.slot_requests.get();
    stats.edge_requests += counters.edge_requests.get();
    stats.copied_bytes += counters.copied_bytes.get();
    stats.cufile_requests += counters.device_path_requests.get();
    stats.cufile_bytes += counters.device_path_bytes.get();
    stats.cufile_refusals += counters.device_path_refusals.get();
    stats.gpu_copied_bytes += counters.device_copied_bytes.get();
    stats.bytes_cached += counters.bytes_cached.get();
    stats.cache_questions += counters.cache_questions.get();
    for (std::size_t i = 0; i < latencies.size(); ++i) {
        latencies[i] += counters.latency.count(i);
    }
}

}  // namespace

EngineStats statistics(engine::Core& core) {
    EngineStats stats;
    Latencies latencies{};
    stats.gpu_pinned_bytes = core.device_slot_bytes();
    core.for_each_domain([&](engine::Domain& domain) {
        for (std::uint32_t i = 0; i < domain.channel_count(); ++i) {
            add_counters(stats, latencies, domain.channel(i).counters());
            const engine::Backend& backend = domain.channel(i).backend();
            stats.system_calls += backend.system_calls();
            stats.registered_requests += backend.registered_memory().requests;
            stats.registered_bytes += backend.registered_memory().bytes;
        }
        domain.for_each_inline_channel([&](const engine::Channel& channel) {
            add_counters(stats, latencies, channel.counters());
            stats.inline_requests += channel.counters().requests.get();
        });
    });
    stats.running = core.running();
    std::uint64_t total = 0;
    for (const std::uint64_t count : latencies) {
        total += count;
    }
    stats.latency = {.p50 = percentile(latencies, total, 0.5),
                     .p90 = percentile(latencies, total, 0.9),
                     .p99 = percentile(latencies, total, 0.99),
                     .p999 = percentile(latencies, total, 0.999),
                     .max = percentile(latencies, total, 1.0),
                     .histogram = histogram(latencies)};
    return stats;
}

EngineDescription description(engine::Core& core, const EngineOptions& options) {
    EngineDescription out;
    out.backend = core.backend_name();
    out.detail = core.backend_detail();
    out.refusals = core.refusals();
    const std::string refusal = os::cachestat_refusal();
    out.page_cache = refusal.empty()
                         ? "cachestat(2) reports which parts of a file are in it"
                         : "'auto' tries single bytes to find out what is in it, for " + refusal;
    engine::DevicePath* const path = core.device_path();
    out.cufile = path == nullptr ? "not used: gpu_path is 'bounce'" : path->text();
    out.options = options;
    core.for_each_domain([&](engine::Domain& domain) {
        const engine::Backend& backend = domain.channel(0).backend();
        out.devices.push_back({domain.device(), domain.channel_count(), backend.name(),
                               why_refused(backend.registered_memory().refused)});
    });
    for (const engine::SlotPool::Use& use : core.device_uses()) {
        constexpr std::uint64_t kMost =
            std::uint64_t{engine::SlotPool::kChunkBytes} * engine::SlotPool::kChunksMax;
        auto& gpu = out.gpus.emplace_back();
        gpu.number = use.place.device;
        gpu.way = "pinned slots of host memory, and the GPU's copy engines";
        gpu.channels = use.holders;
        gpu.pinned_bytes = use.bytes;
        gpu.pinned_bytes_max = kMost;
    }
    std::sort(out.gpus.begin(), out.gpus.end(),
              [](const auto& a, const auto& b) { return a.number < b.number; });
    return out;
}

}  // namespace api

std::string EngineDescription::text() const {
    std::string out = fmt::format("backend     {} ({})\n", backend, detail);
    for (const std::string& refusal : refusals) {
        out += fmt::format("not used    {}\n", refusal);
    }
    out += fmt::format("block       {}, depth {}, in flight {}, a channel\n",
                       base::format_bytes(options.block_bytes), options.queue_depth,
                       base::format_bytes(options.in_flight_bytes));
    out += fmt::format("page cache  '{}'; {}\n", name_of(options.cache), page_cache);
    out += fmt::format("gpu         {}\n", device::driver_text());
    for (const OfGpu& gpu : gpus) {
        out += fmt::format("            {}: {}; {} of at most {} pinned, {} channel{}\n",
                           gpu.number, gpu.way, base::format_bytes(gpu.pinned_bytes),
                           base::format_bytes(gpu.pinned_bytes_max), gpu.channels,
                           gpu.channels == 1 ? "" : "s");
    }
    out += fmt::format("cufile      '{}'; {}\n", name_of(options.gpu_path), cufile);
    for (const Device& device : devices) {
        out +=
            fmt::format("device      {}:{}, {} channel{}, {}\n", device.id.major, device.id.minor,
                        device.channels, device.channels == 1 ? "" : "s", device.backend);
        if (!device.memory_refused.empty()) {
            out += fmt::format("            {}\n", device.memory_refused);
        }
    }
    return out;
}

}  // namespace penstock
