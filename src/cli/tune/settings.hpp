// SPDX-License-Identifier: Apache-2.0
// One point in the search space of `penstock tune`.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/types.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::cli {

struct TuneSettings {
    std::uint64_t block_bytes = 1 << 20;
    std::uint32_t depth = 16;  ///< blocks at the device, per channel
    std::uint32_t channels = 1;
    BackendKind backend = BackendKind::kAuto;

    bool operator==(const TuneSettings&) const = default;
    [[nodiscard]] std::uint64_t in_flight_bytes() const { return block_bytes * depth; }
};

/// The settings of an engine without options.
[[nodiscard]] TuneSettings default_settings(const EngineOptions& defaults);

/// The options of an engine with these settings: the defaults except for what is searched.
[[nodiscard]] EngineOptions engine_options(const TuneSettings& settings,
                                           const EngineOptions& defaults);

/// The first candidates of a search: the defaults, then others that lie well apart.
[[nodiscard]] std::vector<TuneSettings> spread_around(const TuneSettings& defaults);

/// One step away in each direction; `backends` are those tried besides the one in use.
[[nodiscard]] std::vector<TuneSettings> neighbours(const TuneSettings& settings,
                                                   const std::vector<BackendKind>& backends);

/// "4 MiB x 16", and any difference from one channel of the backend in use: ", 2 channels, posix".
[[nodiscard]] std::string to_string(const TuneSettings& settings);

}  // namespace penstock::cli
