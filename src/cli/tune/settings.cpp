// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/settings.hpp"

#include "base/text/units.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace penstock::cli {

namespace {

constexpr std::uint64_t kKiB = 1 << 10;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kBlockMin = 64 * kKiB;
constexpr std::uint64_t kBlockMax = 16 * kMiB;
constexpr std::uint32_t kDepthMax = 256;
constexpr std::uint32_t kChannelsMax = 4;
constexpr std::uint64_t kInFlightMax = 128 * kMiB;

bool is_allowed(const TuneSettings& settings) {
    return settings.block_bytes >= kBlockMin && settings.block_bytes <= kBlockMax &&
           settings.depth >= 1 && settings.depth <= kDepthMax && settings.channels >= 1 &&
           settings.channels <= kChannelsMax && settings.in_flight_bytes() <= kInFlightMax;
}

}  // namespace

TuneSettings default_settings(const EngineOptions& defaults) {
    const std::uint64_t fit =
        std::max<std::uint64_t>(1, defaults.in_flight_bytes / defaults.block_bytes);
    return {.block_bytes = defaults.block_bytes,
            .depth = static_cast<std::uint32_t>(std::min<std::uint64_t>(defaults.queue_depth, fit)),
            .channels = defaults.channels,
            .backend = defaults.backend};
}

EngineOptions engine_options(const TuneSettings& settings, const EngineOptions& defaults) {
    EngineOptions options = defaults;
    if (settings == default_settings(defaults)) {
        return options;
    }
    options.block_bytes = static_cast<std::uint32_t>(settings.block_bytes);
    options.queue_depth = settings.depth;
    options.in_flight_bytes = settings.in_flight_bytes();
    options.channels = settings.channels;
    options.backend = settings.backend;
    return options;
}

std::vector<TuneSettings> spread_around(const TuneSettings& defaults) {
    struct Point {
        std::uint64_t block_bytes;
        std::uint32_t depth;
    };
    constexpr std::array<Point, 11> kPoints{{{128 * kKiB, 64},
                                             {256 * kKiB, 16},
                                             {256 * kKiB, 128},
                                             {512 * kKiB, 32},
                                             {1 * kMiB, 4},
                                             {1 * kMiB, 16},
                                             {1 * kMiB, 64},
                                             {2 * kMiB, 16},
                                             {4 * kMiB, 4},
                                             {4 * kMiB, 16},
                                             {8 * kMiB, 4}}};
    std::vector<TuneSettings> all{defaults};
    for (const Point& point : kPoints) {
        TuneSettings settings = defaults;
        settings.block_bytes = point.block_bytes;
        settings.depth = point.depth;
        if (settings != defaults) {
            all.push_back(settings);
        }
    }
    return all;
}

std::vector<TuneSettings> neighbours(const TuneSettings& settings,
                                     const std::vector<BackendKind>& backends) {
    std::vector<TuneSettings> all;
    const auto add = [&](auto change) {
        TuneSettings other = settings;
        change(other);
        if (is_allowed(other) && other != settings) {
            all.push_back(other);
        }
    };
    add([](TuneSettings& s) { s.block_bytes *= 2; });
    add([](TuneSettings& s) { s.block_bytes /= 2; });
    add([](TuneSettings& s) { s.depth *= 2; });
    add([](TuneSettings& s) { s.depth /= 2; });
    add([](TuneSettings& s) { s.channels *= 2; });
    for (const BackendKind backend : backends) {
        add([backend](TuneSettings& s) { s.backend = backend; });
    }
    return all;
}

std::string to_string(const TuneSettings& settings) {
    std::string text =
        fmt::format("{} x {}", base::format_bytes(settings.block_bytes), settings.depth);
    if (settings.channels != 1) {
        text += fmt::format(", {} channels", settings.channels);
    }
    if (settings.backend != BackendKind::kAuto) {
        text += std::string(", ") + name_of(settings.backend);
    }
    return text;
}

}  // namespace penstock::cli
