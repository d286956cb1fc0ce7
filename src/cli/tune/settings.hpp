// SPDX-License-Identifier: Apache-2.0
// A point of the space that `penstock tune` searches.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/types.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::cli {

struct TuneSettings {
    std::uint64_t block_bytes = 1 << 20;
    std::uint32_t depth = 16;  ///< blocks at the device, a channel
    std::uint32_t channels = 1;
    BackendKind backend = BackendKind::kAuto;

    bool operator==(const TuneSettings&) const = default;
    [[nodiscard]] std::uint64_t in_flight_bytes() const { return block_bytes * depth; }
};

/// What the engine does when nobody asks for anything.
[[nodiscard]] TuneSettings default_settings(const EngineOptions& defaults);

/// The engine that has them: the defaults but for what is searched.
[[nodiscard]] EngineOptions engine_options(const TuneSettings& settings,
                                           const EngineOptions& defaults);

/// Where a search begins: the defaults first, then others that lie well apart.
[[nodiscard]] std::vector<TuneSettings> spread_around(const TuneSettings& defaults);

/// One step away in each direction; `backends` are those that are tried beside the one in use.
[[nodiscard]] std::vector<TuneSettings> neighbours(const TuneSettings& settings,
                                                   const std::vector<BackendKind>& backends);

/// "4 MiB x 16", and what differs from one channel of the backend in use: ", 2 channels, posix".
[[nodiscard]] std::string to_string(const TuneSettings& settings);

}  // namespace penstock::cli
