// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"
#include "base/eventfd.hpp"
#include "bind.hpp"
#include "errors.hpp"
#include "future_object.hpp"
#include "names.hpp"
#include "transfer_object.hpp"

#include <nanobind/typing.h>

#include <climits>
#include <exception>
#include <new>

namespace penstock::python {

namespace {

void wait_until_done(FutureObject& self, nb::handle timeout) {
    if (self.wait(timeout_seconds(timeout))) {
        return;
    }
    const nb::object message = path_object(self.name() + " still runs after " + text(timeout) +
                                           " s and goes on; ask again, or cancel() it");
    PyErr_SetObject(PyExc_TimeoutError, message.ptr());
    throw nb::python_error();
}

nb::object result_of(FutureObject& self, nb::handle timeout) {
    wait_until_done(self, timeout);
    return self.value();
}

nb::object exception_of(FutureObject& self, nb::handle timeout) {
    wait_until_done(self, timeout);
    try {
        static_cast<void>(self.value());
        return nb::none();
    } catch (const Error& error) {
        set_python_error(error);
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    }
    nb::python_error raised;
    return nb::borrow(raised.value());
}

bool cancel(FutureObject& self) {
    const bool runs = !self.done();
    self.cancel();
    return runs;
}

int eventfd_of(nb::handle eventfd) {
    return static_cast<int>(count_of(eventfd, "eventfd", "a descriptor", INT_MAX));
}

void notify(nb::handle self, nb::handle eventfd) {
    FutureObject& future = *nb::inst_ptr<FutureObject>(self);
    const int descriptor = eventfd_of(eventfd);
    if (future.works_at_end() && base::is_eventfd(descriptor)) {
        nb::module_::import_("penstock._base.futures").attr("notify_when_done")(self, descriptor);
    } else {
        future.notify(descriptor);
    }
}

nb::object coroutine_of(nb::handle self) {
    return nb::module_::import_("penstock._base.futures").attr("result")(self);
}

}  // namespace

void bind_future(nb::module_& m) {
    m.attr("T") = nb::type_var("T");
    nb::class_<FutureObject>(
        m, "Future", nb::is_generic(), nb::sig("class Future(typing.Generic[T])"),
        "Something under way, or over: a Transfer, or a PendingSave. Thread-safe.\n\n"
        "In asyncio, `await future` gives what result() does, and so does a task of "
        "future.coroutine(). A task that stops\n"
        "waiting leaves it running. After a fork it goes on in the parent, and is over in the "
        "child, where result()\n"
        "raises Cancelled.")
        .def("done", &FutureObject::done, "Whether it is over. Never blocks.")
        .def("cancelled", &FutureObject::cancelled,
             "Whether it is over because cancel() was called. Never blocks.")
        .def("cancel", cancel,
             "Stops it: result() then raises Cancelled, unless it is through before. Never blocks. "
             "False: it was over.")
        .def("result", result_of, nb::arg("timeout") = nb::none(),
             nb::sig("def result(self, timeout: float | None = None) -> T"),
             "What it gives, or raises its error.\n\n"
             "timeout: seconds, then TimeoutError. It goes on, also after Ctrl-C.")
        .def("exception", exception_of, nb::arg("timeout") = nb::none(),
             nb::sig("def exception(self, timeout: float | None = None) -> BaseException | None"),
             "What result() would raise, or None; it then counts as reported. Waits as result() "
             "does.")
        .def(
            "add_done_callback",
            [](nb::handle self, nb::handle function) {
                nb::module_::import_("penstock._base.futures")
                    .attr("call_when_done")(self, function);
            },
            nb::arg("fn").none(),
            nb::sig(
                "def add_done_callback(self, fn: collections.abc.Callable[[Future[T]], object]) "
                "-> None"),
            "Calls fn(future) once when it is over, on a thread that Penstock has for that; at "
            "once, on this one, where it\n"
            "is over. What fn raises goes to the logger \"penstock\". The child of a fork calls "
            "none of its parent's.")
        .def("notify", notify, nb::arg("eventfd").none(),
             nb::sig("def notify(self, eventfd: int) -> None"),
             "Adds 1 to an eventfd when it is over (at once when it is). You may close the "
             "descriptor before;\nValueError when it is not an eventfd's.")
        .def(
            "coroutine", coroutine_of,
            nb::sig("def coroutine(self) -> collections.abc.Coroutine[typing.Any, typing.Any, T]"),
            "A coroutine that waits for it, for asyncio.create_task() and TaskGroup.create_task().")
        .def(
            "__reduce__",
            [](nb::handle self) {
                const auto name = nb::borrow<nb::str>(self.type().attr("__name__"));
                cannot_pickle(name.c_str(), "its arguments");
            },
            nb::sig("def __reduce__(self) -> str"))
        .def(
            "__await__", [](nb::handle self) { return coroutine_of(self).attr("__await__")(); },
            nb::sig("def __await__(self) -> collections.abc.Generator[typing.Any, None, T]"));
    m.def(
        "wake",
        [](FutureObject& future, nb::handle eventfd) { future.notify(eventfd_of(eventfd)); },
        nb::arg("future"), nb::arg("eventfd"),
        "notify(), for who asks done() next: it does what is left to do at the end.");
}

}  // namespace penstock::python
