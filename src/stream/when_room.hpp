// SPDX-License-Identifier: Apache-2.0
// Transfers in an engine with a limit on transfers (EngineOptions::transfers_max), which other
// callers may use up.
#pragma once

#include <penstock/engine.hpp>

#include <cstdint>

namespace penstock::stream {

/// Engine::read() and Engine::write(), as soon as there is room. Throw Error.
void read_when_room(Engine& engine, const File& file, Memory into, std::uint64_t offset,
                    CachePolicy cache = CachePolicy::kAuto);
void write_when_room(Engine& engine, const File& file, ConstMemory data, std::uint64_t offset);

}  // namespace penstock::stream
