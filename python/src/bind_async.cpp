// SPDX-License-Identifier: Apache-2.0
// Saves in the background: PendingSave, and the one Saver that writes single files.
#include "arguments.hpp"
#include "bind.hpp"
#include "collected.hpp"
#include "errors.hpp"
#include "exit_status.hpp"
#include "file_image_object.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "saver.hpp"
#include "store/background/file_saver.hpp"
#include "transfer_object.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <set>

namespace penstock::python {

namespace {

// Those whose destructor has not ended. All access is with the GIL. Never destroyed: savers may
// outlive the statics.
std::set<Saver*>& live_savers() {
    static auto* const instance = new std::set<Saver*>;
    return *instance;
}

// The owners of the memory, released with this object.
std::shared_ptr<void> owners_of(const std::vector<StorageMemory>& storages) {
    nb::list keeps;
    for (const StorageMemory& storage : storages) {
        keeps.append(storage.keep);
        for (const auto& tensor : storage.tensors) {
            keeps.append(tensor.first);
        }
    }
    return {keeps.release().ptr(), [](void* object) {
                const nb::gil_scoped_acquire gil;
                Py_DECREF(static_cast<PyObject*>(object));
            }};
}

}  // namespace

Saver::Saver(std::shared_ptr<store::BackgroundSaver> saver) : saver_(std::move(saver)) {
    live_savers().insert(this);
}

Saver::~Saver() {
    try {
        finish(Failures::kWarn);
    } catch (nb::python_error& e) {
        e.discard_as_unraisable("penstock: finishing saves");
    } catch (const std::bad_alloc&) {  // to tell of what failed; the queue finishes all the same
    }
    live_savers().erase(this);
    const nb::gil_scoped_release nogil;
    saver_.reset();
}

void Saver::finish(Failures how) {
    std::optional<nb::python_error> interrupted;
    const std::shared_ptr<store::SaveQueue> queue = saver_->queue();
    while (true) {
        try {
            wait_idle(-1);
            break;
        } catch (nb::python_error& e) {
            if (interrupted) {
                break;
            }
            interrupted.emplace(std::move(e));
            queue->cancel_all();
        }
    }
    // While the end of the interpreter waits, another thread may destroy this saver.
    if (!live_savers().contains(this)) {
        return;
    }
    saver_->sweep();
    std::exception_ptr first;
    if (how == Failures::kRaise && !interrupted) {
        try {
            raise_failure({});
        } catch (...) {
            first = std::current_exception();
        }
    }
    for (const std::string& failure : saver_->take_failures()) {
        note_unheard(failure);
        if (how != Failures::kAtExit) {
            warn_of(failure);
        }
    }
    if (interrupted) {
        throw nb::python_error(std::move(*interrupted));
    }
    if (first) {
        std::rethrow_exception(first);
    }
}

bool Saver::wait_idle(double timeout_s) {
    return wait_in_slices(
        timeout_s, [queue = saver_->queue()](auto slice) { return queue->wait_idle(slice); });
}

store::Collected Saver::collect(const TensorStream& stream, Changing changing) {
    return store::collect(*saver_, stream, changing, [](const auto& step) {
        const nb::gil_scoped_acquire gil;
        wait_in_slices(-1, step);
    });
}

AsyncCall::AsyncCall(nb::handle copy, const std::vector<StorageMemory>& storages,
                     nb::handle progress, std::shared_ptr<void> keeps)
    : progress_(progress) {
    struct Kept {
        std::shared_ptr<void> objects;
        std::shared_ptr<void> other;
    };
    options_.keeps = std::make_shared<Kept>(Kept{owners_of(storages), std::move(keeps)});
    options_.waiting = [this](const AsyncWait& wait) {
        const nb::gil_scoped_acquire gil;
        waits(wait);
    };
    if (PyBool_Check(copy.ptr())) {
        options_.copy = truth(copy);
        return;
    }
    for (const nb::handle row : nb::iter(copy)) {
        options_.unchanging.push_back(
            {reinterpret_cast<const std::byte*>(nb::cast<std::uintptr_t>(row[0])),
             nb::cast<std::size_t>(row[1])});
    }
}

void AsyncCall::warn(const std::string& note) {
    if (!std::exchange(warned_, warned_ || !note.empty())) {
        warn_of(note);
    }
}

void AsyncCall::waits(const AsyncWait& wait) {
    if (PyErr_CheckSignals() != 0) {
        throw nb::python_error();
    }
    warn(wait.note);
    if (!progress_.is_none() && wait.total_bytes != 0 && wait.done_bytes != reported_) {
        reported_ = wait.done_bytes;
        progress_(wait.done_bytes, wait.total_bytes);
    }
}

bool PendingSaveObject::wait(bool staged_is_enough, double timeout_s) const {
    std::uint64_t reported = ~std::uint64_t{0};
    const auto tell = [&] {
        const std::uint64_t done = save.done_bytes();
        if (!progress.is_none() && done != reported && save.total_bytes() != 0) {
            reported = done;
            progress(done, save.total_bytes());
        }
    };
    return wait_in_slices(timeout_s, [&](auto slice) {
        const bool over = staged_is_enough ? save.wait_staged(slice) : save.wait(slice);
        if (!progress.is_none()) {
            const nb::gil_scoped_acquire gil;
            tell();
        }
        return over;
    });
}

nb::object PendingSaveObject::value() {
    if (!of_store) {
        if (const std::exception_ptr failure = save.failure()) {
            std::rethrow_exception(failure);
        }
        return nb::none();
    }
    // A copy that nanobind made would end in std::bad_cast where memory has run out.
    return nb::cast(new CheckpointInfo(save.result()), nb::rv_policy::take_ownership);
}

namespace {

// ---- single files

// The engine is that of each call.
struct FileSaverObject {
    explicit FileSaverObject(std::uint64_t host_memory)
        : saver(std::make_shared<store::BackgroundSaver>(host_memory)) {}
    Saver saver;
};

nb::object save_file_async(FileSaverObject& self, FileImageObject& made, nb::handle to,
                           nb::handle copy, nb::object progress, nb::handle changing) {
    const std::string path = path_bytes(to, "path", "");
    AsyncCall call(copy, made.payloads, progress);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    store::AsyncSave save{
        .name = {}, .memory = {}, .streams = made.streams, .changing = changing_of(changing)};
    save.look = look_of(made.payloads, save.changing);
    for (const StorageMemory& payload : made.payloads) {
        save.memory.push_back({.bytes = payload.memory(), .copied = payload.copied});
    }
    PendingSave pending = call.run([&](const AsyncOptions& options) {
        return store::save_image_async(self.saver.own(), engine, FileSystem::any(), path,
                                       std::move(made.image), std::move(save), options);
    });
    return nb::cast(PendingSaveObject(std::move(pending), std::move(progress), false));
}

const char* save_state_text(const PendingSaveObject& self) {
    switch (self.save.state()) {
        case PendingSave::State::kQueued:
            return "queued";
        case PendingSave::State::kStaged:
            return "staged";
        case PendingSave::State::kDurable:
            return "durable";
        case PendingSave::State::kFailed:
            return "failed";
    }
    return "";
}

void bind_pending_save(nb::module_& parent) {
    nb::class_<PendingSaveObject, FutureObject>(
        parent, "PendingSave", nb::is_generic(), nb::sig("class PendingSave(Future[T])"),
        "A save that goes on while training does: a Future, whose result() is the CheckpointInfo "
        "of a store's save, None of a\n"
        "file's. Made by save_async(); thread-safe.\n\n"
        "queued -> staged (the tensors may change) -> durable, or failed. Dropped, it goes on. Its "
        "failure is raised by\n"
        "result(), by the next save, or by wait() and close() of the store. A failure that none of "
        "them has raised is printed\n"
        "at the end of the interpreter, and the exit status is then 1 in place of 0. After "
        "cancel() what was there before\n"
        "stays.")
        .def(
            "staged", [](const PendingSaveObject& p) { return p.save.staged(); },
            "Whether the tensors may change. Never blocks.")
        .def(
            "durable",
            [](const PendingSaveObject& p) {
                return p.save.state() == PendingSave::State::kDurable;
            },
            "Whether it survives a power failure. Never blocks, and stays False for one that "
            "failed.")
        .def_prop_ro("state", save_state_text,
                     nb::sig("def state(self) -> typing.Literal['queued', 'staged', 'durable', "
                             "'failed']"),
                     "'queued', 'staged', 'durable' or 'failed'.")
        .def(
            "wait_before_update",
            [](const PendingSaveObject& p, nb::handle timeout) {
                return p.wait(true, timeout_seconds(timeout));
            },
            nb::arg("timeout") = nb::none(),
            nb::sig("def wait_before_update(self, timeout: float | None = None) -> bool"),
            "Until the tensors may change: at once where a copy was made. False after `timeout` "
            "seconds.")
        .def_prop_ro(
            "done_bytes", [](const PendingSaveObject& p) { return p.save.done_bytes(); },
            "Bytes written so far.")
        .def_prop_ro(
            "total_bytes", [](const PendingSaveObject& p) { return p.save.total_bytes(); },
            "Bytes to be written, 0 before it begins.")
        .def_prop_ro(
            "waited_s", [](const PendingSaveObject& p) { return p.save.waited_s(); },
            "Seconds that save_async waited for room in host_memory.")
        .def(
            "__repr__",
            [](const PendingSaveObject& p) {
                return path_object("<penstock.PendingSave of " + p.save.name() + ", " +
                                   save_state_text(p) + ">");
            },
            nb::sig("def __repr__(self) -> str"));
}

}  // namespace

void bind_async(nb::module_& parent) {
    bind_pending_save(parent);
    nb::module_ m = parent.def_submodule("_async", "Saves in the background; private.");
    nb::class_<CollectedObject>(m, "Collected").def("rows", rows_of_collected);
    nb::class_<FileSaverObject>(m, "FileSaver")
        .def(nb::init<std::uint64_t>(), nb::arg("host_memory"))
        .def("save", save_file_async, nb::arg("image"), nb::arg("path"), nb::arg("copy"),
             nb::arg("progress").none(), nb::arg("changing") = "raise")
        .def(
            "collect",
            [](FileSaverObject& self, nb::handle items, nb::handle row, nb::handle changing) {
                self.saver.raise_failure("the save of an iterator");
                return collect(self.saver, items, row, changing);
            },
            nb::arg("items"), nb::arg("row"), nb::arg("changing"))
        .def(
            "finish", [](FileSaverObject& self) { self.saver.finish(Saver::Failures::kRaise); },
            "Waits until everything is durable or has failed; raises the first failure that was "
            "not reported.");
    m.def(
        "default_host_memory", [] { return store::Staging::default_budget_bytes(); }, "Bytes");
    m.def(
        "at_exit",
        [] {
            // Others may come and go while one is waited for.
            const std::set<Saver*>& live = live_savers();
            std::set<Saver*> finished;
            for (auto next = live.begin(); next != live.end();) {
                Saver* const saver = *next;
                if (finished.insert(saver).second) {
                    saver->finish(Saver::Failures::kAtExit);
                }
                next = std::find_if(live.begin(), live.end(),
                                    [&](Saver* one) { return !finished.contains(one); });
            }
            return report_unheard();
        },
        "Finishes what is in flight, and reports the failures that nobody heard of: true for any.");
}

}  // namespace penstock::python
