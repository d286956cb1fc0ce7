// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"
#include "bind.hpp"
#include "engine_object.hpp"
#include "names.hpp"
#include "request.hpp"
#include "transfer_object.hpp"
#include "without_gil.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock::python {

namespace {

using Clock = std::chrono::steady_clock;

// Longer waits than this (30 years) are no limit; the clock's arithmetic stays in range.
constexpr double kTimeoutMax = 1e9;

// Transfers that were dropped while they ran. Never destroyed. All access is with the GIL, and
// nothing in a critical section gives it up, so that a fork never finds it locked.
struct Orphans {
    std::mutex mutex;
    Held* first = nullptr;
};

Orphans& orphans() {
    static auto* const instance = new Orphans;
    return *instance;
}

std::chrono::nanoseconds slice_until(Clock::time_point deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
    return std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(0), kSignalSlice);
}

}  // namespace

void Held::let_go() {
    const std::vector<Keep> dropped = std::exchange(keeps, {});
}

void DropHeld::operator()(Held* held) const noexcept {
    if (held->transfer.done()) {
        delete held;
        return;
    }
    Orphans& all = orphans();
    const std::lock_guard lock(all.mutex);
    held->next_orphan = std::exchange(all.first, held);
}

void sweep_orphans() {
    Orphans& all = orphans();
    Held* done = nullptr;
    {
        const std::lock_guard lock(all.mutex);
        for (Held** at = &all.first; *at != nullptr;) {
            Held* const held = *at;
            if (held->transfer.done()) {
                *at = held->next_orphan;
                held->next_orphan = std::exchange(done, held);
            } else {
                at = &held->next_orphan;
            }
        }
    }
    // Their end may run Python code, which may come here again.
    while (done != nullptr) {
        const std::unique_ptr<Held> held(std::exchange(done, done->next_orphan));
    }
}

std::optional<std::uint64_t> wait(Held& held, double timeout_s) {
    const bool limited = timeout_s >= 0 && timeout_s < kTimeoutMax;
    Clock::time_point deadline;
    if (limited) {
        deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(timeout_s));
    }
    while (!held.transfer.done()) {
        bool over = false;
        {
            const WithoutGil nogil;
            const auto slice =
                limited ? slice_until(deadline) : std::chrono::nanoseconds(kSignalSlice);
            try {
                static_cast<void>(held.transfer.wait_for(slice));
            } catch (const std::exception&) {
                break;  // it is done; asked again below, with the GIL
            }
            over = limited && Clock::now() >= deadline && !held.transfer.done();
        }
        if (PyErr_CheckSignals() != 0) {
            throw nb::python_error();
        }
        if (over) {
            return std::nullopt;
        }
    }
    held.let_go();
    sweep_orphans();
    return held.transfer.wait();
}

nb::object result(const Held& held, std::uint64_t bytes, bool list, std::size_t extents) {
    if (!list) {
        return nb::int_(bytes);
    }
    nb::list out;
    for (std::size_t i = 0; i < extents; ++i) {
        out.append(held.transfer.extent_bytes(i));
    }
    return out;
}

double timeout_seconds(nb::handle timeout) {
    if (timeout.is_none()) {
        return -1;
    }
    const double seconds = PyFloat_AsDouble(timeout.ptr());
    if (seconds == -1 && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        raise_type("timeout: got " + type_text(timeout) + "; give seconds, or None to wait on");
    }
    if (std::isnan(seconds)) {
        raise_value("timeout: nan is no number of seconds");
    }
    return std::max(seconds, 0.0);
}

namespace {

nb::object wait_method(TransferObject& self, nb::handle timeout) {
    const double seconds = timeout_seconds(timeout);
    const auto bytes = wait(*self.held, seconds);
    if (!bytes) {
        const std::string message = "the transfer still runs after " + text(timeout) +
                                    " s and goes on; wait again, or cancel() it";
        PyErr_SetString(PyExc_TimeoutError, message.c_str());
        throw nb::python_error();
    }
    return result(*self.held, *bytes, self.list_result, self.extent_count);
}

bool done(TransferObject& self) {
    const bool is_done = self.held->transfer.done();
    if (is_done) {
        self.held->let_go();
    }
    return is_done;
}

const char* status(TransferObject& self) {
    static_cast<void>(done(self));
    switch (self.held->transfer.status()) {
        case TransferStatus::kRunning:
            return "running";
        case TransferStatus::kDone:
            return "done";
        case TransferStatus::kFailed:
            return "failed";
        case TransferStatus::kCancelled:
            return "cancelled";
    }
    return "";
}

}  // namespace

void bind_transfer(nb::module_& m) {
    nb::class_<TransferObject>(
        m, "Transfer",
        "A read or write that is under way, or over. Made by read_async() and write_async(); "
        "thread-safe.\n\n"
        "It keeps its tensors alive until it is done. Dropped, it goes on, and an error of it is "
        "raised by the next\n"
        "Engine.drain(). In asyncio, `await transfer` gives what wait() does.")
        .def("wait", wait_method, nb::arg("timeout") = nb::none(),
             nb::sig("def wait(self, timeout: float | None = None) -> typing.Any"),
             "Bytes moved; for sequences with allow_short a list of them. Raises its error.\n\n"
             "timeout: seconds, then TimeoutError; the transfer goes on. Ctrl-C interrupts, the "
             "transfer goes on.")
        .def_prop_ro("done", done, "Whether it is over. Never blocks.")
        .def_prop_ro("status", status,
                     "'running', 'done', 'failed' or 'cancelled'. Never blocks or raises.")
        .def_prop_ro(
            "nbytes", [](const TransferObject& t) { return t.held->transfer.total_bytes(); },
            "Bytes asked for.")
        .def(
            "cancel",
            [](TransferObject& t) {
                const WithoutGil nogil;
                t.held->transfer.cancel();
            },
            "Submits no more and lets what is at the device come back; wait() then raises "
            "Cancelled, unless it was\n"
            "over already. The memory of a read and the extent of a write are undefined.")
        .def(
            "set_priority",
            [](TransferObject& t, nb::handle priority) {
                t.held->transfer.set_priority(priority_of(priority));
            },
            nb::arg("priority").none(), nb::sig("def set_priority(self, priority: str) -> None"),
            "'urgent', 'normal' or 'background', also while it runs.")
        .def(
            "notify",
            [](TransferObject& t, nb::handle eventfd) {
                t.held->transfer.notify(
                    static_cast<int>(count_of(eventfd, "eventfd", "a descriptor", INT_MAX)));
            },
            nb::arg("eventfd").none(), nb::sig("def notify(self, eventfd: int) -> None"),
            "Adds 1 to an eventfd when it is done (at once when it is). The descriptor has to stay "
            "open until then;\nValueError when it is not an eventfd's.")
        .def(
            "__await__",
            [](nb::handle self) {
                return nb::module_::import_("penstock._aio").attr("wait")(self).attr("__await__")();
            },
            nb::sig(
                "def __await__(self) -> collections.abc.Generator[typing.Any, None, typing.Any]"))
        .def("__repr__", [](TransferObject& t) {
            return "<penstock.Transfer of " + std::to_string(t.held->transfer.total_bytes()) +
                   " bytes, " + status(t) + ">";
        });
}

}  // namespace penstock::python
