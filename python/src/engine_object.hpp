// SPDX-License-Identifier: Apache-2.0
// penstock.Engine as Python holds it, and what the module knows of all engines: which live (to
// drain them at exit) and which one is the default.
#pragma once

#include "nanobind.hpp"

#include <penstock/engine.hpp>

#include <chrono>
#include <memory>

namespace penstock::python {

/// Waits are made of these: how soon Ctrl-C is seen.
inline constexpr std::chrono::milliseconds kSignalSlice{50};

/// Touched with the GIL held; its calls are made without it, on a share of `engine`, so that
/// close() on another thread is safe.
struct EngineObject {
    EngineObject();
    explicit EngineObject(std::shared_ptr<Engine> made);
    EngineObject(const EngineObject&) = delete;
    EngineObject& operator=(const EngineObject&) = delete;
    ~EngineObject();

    std::shared_ptr<Engine> engine;  ///< nullptr: closed
    bool used = false;               ///< in this process
};

[[nodiscard]] const std::shared_ptr<Engine>& opened(const EngineObject& self);

/// Made at first use.
[[nodiscard]] EngineObject& default_engine();

/// Until nothing runs, in slices, with a look at signals after each. Then lets go of what transfers
/// that were dropped still held, and raises the first error among theirs. False when the time is
/// over. `timeout_s` < 0: no limit.
bool drain(const std::shared_ptr<Engine>& engine, double timeout_s);

}  // namespace penstock::python
