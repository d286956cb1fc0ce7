// SPDX-License-Identifier: Apache-2.0
// penstock.Engine as Python holds it, and what the module knows of all engines: which live (to
// drain them at exit) and which one is the default.
#pragma once

#include "nanobind.hpp"

#include <penstock/engine.hpp>

#include <algorithm>
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

    std::shared_ptr<Engine> engine;  ///< nullptr: closed, and nothing of it runs
    bool used = false;               ///< in this process
};

/// Raises when it is closed, and when refuse_other_threads() has been called by another thread.
[[nodiscard]] const std::shared_ptr<Engine>& opened(const EngineObject& self);

/// Raises RuntimeError on every thread but the one that ends the interpreter, from when it does.
void check_interpreter_goes_on();

/// Made at first use.
[[nodiscard]] EngineObject& default_engine();

/// Calls `step(slice)` without the GIL until it says true, and looks at signals in between. False
/// when the time is over. `timeout_s` < 0: no limit.
template <typename Step>
bool wait_in_slices(double timeout_s, const Step& step) {
    using Clock = std::chrono::steady_clock;
    const bool limited = timeout_s >= 0 && timeout_s < 1e9;
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(limited ? timeout_s : 0));
    while (true) {
        std::chrono::nanoseconds slice = kSignalSlice;
        if (limited) {
            slice = std::clamp<std::chrono::nanoseconds>(deadline - Clock::now(),
                                                         std::chrono::nanoseconds(0), slice);
        }
        bool done = false;
        {
            const nb::gil_scoped_release nogil;
            done = step(slice);
        }
        if (done) {
            return true;
        }
        if (PyErr_CheckSignals() != 0) {
            throw nb::python_error();
        }
        if (limited && Clock::now() >= deadline) {
            return false;
        }
    }
}

/// Engine::drain() in slices. Then releases the memory of dropped transfers, and raises the first
/// error among theirs. False when the time is over. `timeout_s` < 0: no limit.
bool drain(const std::shared_ptr<Engine>& engine, double timeout_s);

}  // namespace penstock::python
