// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"
#include "bind.hpp"
#include "engine_object.hpp"
#include "names.hpp"
#include "request.hpp"
#include "streams.hpp"
#include "transfer_object.hpp"

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
    const Keeps dropped = std::move(keeps);
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
    if (all.first == nullptr) {  // as mostly; all access is with the GIL
        return;
    }
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

bool wait(Held& held, double timeout_s) {
    const bool limited = timeout_s >= 0 && timeout_s < kTimeoutMax;
    Clock::time_point deadline;
    if (limited) {
        deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(timeout_s));
    }
    while (!held.transfer.done()) {
        bool over = false;
        {
            const nb::gil_scoped_release nogil;
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
            return false;
        }
    }
    held.let_go();
    sweep_orphans();
    return true;
}

nb::object result(Held& held, bool list, std::size_t extents) {
    const std::uint64_t bytes = held.transfer.wait();
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

void bind_depth_limit(nb::module_& m) {
    nb::class_<DepthLimit>(
        m, "DepthLimit",
        "A limit that transfers share on the requests that they have at one "
        "device together, below\n"
        "the engine's queue_depth: DepthLimit(requests), 1 or more. Thread-safe.")
        .def(
            "__init__",
            [](DepthLimit* self, nb::handle requests) {
                new (self) DepthLimit(static_cast<std::uint32_t>(
                    count_of(requests, "requests", "requests", UINT32_MAX)));
            },
            nb::arg("requests").none(), nb::sig("def __init__(self, requests: int) -> None"))
        .def_prop_ro("requests", &DepthLimit::requests)
        .def("__repr__", [](const DepthLimit& limit) {
            return "DepthLimit(" + std::to_string(limit.requests()) + ")";
        });
}

const char* status(TransferObject& self) {
    static_cast<void>(self.done());
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

// The engine waits for the transfer; here a signal is handled meanwhile.
void join(TransferObject& self, nb::handle stream) {
    const auto handle = stream_of(stream);
    if (!handle) {
        raise_type("stream: got None; give the stream that is to come after the transfer");
    }
    for (bool joined = false; !joined;) {
        {
            const nb::gil_scoped_release nogil;
            joined = self.held->transfer.join_for(*handle, kSignalSlice);
        }
        if (PyErr_CheckSignals() != 0) {
            throw nb::python_error();
        }
    }
    static_cast<void>(self.done());
    sweep_orphans();
}

}  // namespace

bool TransferObject::done() {
    const bool is_done = held->transfer.done();
    if (is_done) {
        held->let_go();
    }
    return is_done;
}

bool TransferObject::cancelled() {
    return done() && held->transfer.status() == TransferStatus::kCancelled;
}

void TransferObject::cancel() {
    const nb::gil_scoped_release nogil;
    held->transfer.cancel();
}

bool TransferObject::wait(double timeout_s) {
    return python::wait(*held, timeout_s);
}

nb::object TransferObject::value() {
    return result(*held, list_result, extent_count);
}

void bind_transfer(nb::module_& m) {
    bind_depth_limit(m);
    nb::class_<TransferObject, FutureObject>(
        m, "Transfer", nb::is_generic(), nb::sig("class Transfer(Future[T])"),
        "A read or write that is under way, or over: a Future, whose result() is the bytes moved; "
        "for sequences with\n"
        "allow_short a list of them. Made by read_async() and write_async(); thread-safe.\n\n"
        "It keeps its tensors alive until it is done. Dropped, it goes on, and an error of it is "
        "raised by the next\n"
        "Engine.drain(). cancel() submits no more and lets what is at the device come back; the "
        "memory of a read and the\n"
        "extent of a write are undefined then.")
        .def_prop_ro("status", status,
                     nb::sig("def status(self) -> typing.Literal['running', 'done', 'failed', "
                             "'cancelled']"),
                     "'running', 'done', 'failed' or 'cancelled'. Never blocks or raises.")
        .def_prop_ro(
            "nbytes", [](const TransferObject& t) { return t.held->transfer.total_bytes(); },
            "Bytes asked for.")
        .def(
            "set_priority",
            [](TransferObject& t, nb::handle priority) {
                t.held->transfer.set_priority(priority_of(priority));
            },
            nb::arg("priority").none(),
            nb::sig("def set_priority(self, priority: typing.Literal['urgent', 'normal', "
                    "'background']) -> None"),
            "'urgent', 'normal' or 'background', also while it runs.")
        .def("join", join, nb::arg("stream").none(),
             nb::sig("def join(self, stream: Stream) -> None"),
             "What is put on this CUDA stream from here on finds the bytes of a read, and may "
             "change those of a write. stream: a\n"
             "handle (int), or an object with __cuda_stream__ or cuda_stream. Waits until all "
             "copies of the transfer are queued\n"
             "on the GPU, not for their end: a write that has room in the slots waits for no disk. "
             "Errors that come later are\n"
             "those of result(); after them the stream reads what is undefined. Raises "
             "what the transfer has failed\n"
             "with by now, and ValueError for what is no stream, or captures a CUDA graph.")
        .def("__repr__", [](TransferObject& t) {
            return "<penstock.Transfer of " + std::to_string(t.held->transfer.total_bytes()) +
                   " bytes, " + status(t) + ">";
        });
}

}  // namespace penstock::python
