// SPDX-License-Identifier: Apache-2.0
// penstock.Transfer as Python holds it.
//
// The engine's threads never touch a Python object. So the memory of a transfer is released
// by the Python thread that finds it done: result(), done(), `status`, or, when the Transfer
// was dropped while it ran, a sweep of the orphans, which every later verb, wait, drain and the end
// of the interpreter does. Should the interpreter end before a transfer does, its memory is never
// released.
#pragma once

#include "base/short_vector.hpp"
#include "borrowed_memory.hpp"
#include "future_object.hpp"
#include "nanobind.hpp"

#include <penstock/engine.hpp>

#include <memory>
#include <string>
#include <utility>

namespace penstock::python {

using Keeps = base::ShortVector<Keep>;

/// A transfer and what must stay where it is until it is done.
struct Held {
    Transfer transfer;
    Keeps keeps;
    Held* next_orphan = nullptr;

    /// Once done: may run Python code.
    void let_go();
};

/// Destroys it, or makes it an orphan where its transfer still runs: neither asks for memory. Made
/// before the transfer begins, so that nothing that fails afterwards lets its memory go.
struct DropHeld {
    void operator()(Held* held) const noexcept;
};
using HeldPtr = std::unique_ptr<Held, DropHeld>;

struct TransferObject final : FutureObject {
    TransferObject(HeldPtr its, bool many, std::size_t extents)
        : held(std::move(its)), list_result(many), extent_count(extents) {}

    [[nodiscard]] bool done() override;
    [[nodiscard]] bool cancelled() override;
    void cancel() override;
    [[nodiscard]] bool wait(double timeout_s) override;
    [[nodiscard]] nb::object value() override;
    void notify(int eventfd) override { held->transfer.notify(eventfd); }
    [[nodiscard]] std::string name() const override { return "the transfer"; }

    HeldPtr held;
    bool list_result;  ///< result() gives a list: bytes of each extent
    std::size_t extent_count;
};

/// Waits without the GIL, in slices; a signal handler's exception leaves the transfer running.
/// False when the time is over. `timeout_s` < 0: no limit. Once done, lets the memory go.
bool wait(Held& held, double timeout_s);

/// Bytes of a done transfer: an int, or a list of them. Throws its Error.
[[nodiscard]] nb::object result(Held& held, bool list, std::size_t extents);

/// Lets go of dropped transfers that are done by now. Cheap when none was dropped.
void sweep_orphans();

/// Seconds as the user gave them; None means no limit, which is -1 here.
[[nodiscard]] double timeout_seconds(nb::handle timeout);

}  // namespace penstock::python
