// SPDX-License-Identifier: Apache-2.0
// Transfers in an engine that may have only so many (EngineOptions::transfers_max), be they
// others'.
#pragma once

#include <penstock/engine.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::stream {

/// Engine::read() and Engine::write(), once there is room. Throw Error.
void read_when_room(Engine& engine, const File& file, std::span<std::byte> into,
                    std::uint64_t offset);
void write_when_room(Engine& engine, const File& file, std::span<const std::byte> data,
                     std::uint64_t offset);

}  // namespace penstock::stream
