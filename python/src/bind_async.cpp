// SPDX-License-Identifier: Apache-2.0
// Saves behind the caller's back: PendingSave, and the one Saver that writes single files.
#include "base/units.hpp"
#include "bind.hpp"
#include "errors.hpp"
#include "file_image_object.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "saver.hpp"
#include "state/file_writer.hpp"
#include "transfer_object.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>

namespace penstock::python {

namespace {

// Those whose destructor has not ended. All access is with the GIL. Never destroyed: savers may
// outlive the statics.
std::set<Saver*>& live_savers() {
    static auto* const instance = new std::set<Saver*>;
    return *instance;
}

void warn_at_runtime(const std::string& message) {
    const nb::object text = path_object(message);
    if (PyErr_WarnFormat(PyExc_RuntimeWarning, 2, "%U", text.ptr()) != 0) {
        throw nb::python_error();
    }
}

std::string failure_message(const std::exception_ptr& failure) {
    try {
        std::rethrow_exception(failure);
    } catch (const std::exception& e) {
        return e.what();
    } catch (...) {
        return "unknown";
    }
}

// Seconds that a wait for room in the budget may take before it is told.
constexpr double kWaitToldS = 1;

}  // namespace

Saver::Saver(std::uint64_t budget_bytes)
    : staging_(
          std::make_unique<store::Staging>(store::StagingOptions{.budget_bytes = budget_bytes})),
      queue_(std::make_shared<store::SaveQueue>()) {
    live_savers().insert(this);
}

Saver::~Saver() {
    try {
        finish();
    } catch (nb::python_error& e) {
        e.discard_as_unraisable("penstock: finishing saves");
    } catch (const std::bad_alloc&) {  // to tell of what failed; the queue finishes all the same
    }
    live_savers().erase(this);
    const WithoutGil nogil;
    queue_.reset();
    staging_.reset();
}

void Saver::finish() {
    std::optional<nb::python_error> interrupted;
    const std::shared_ptr<store::SaveQueue> queue = queue_;
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
    sweep();
    while (const auto failed = queue_->take_failure()) {
        warn_at_runtime(
            "penstock: the save of " + failed->name() +
            " failed, and nobody asked for its result: " + failure_message(failed->failure()));
    }
    if (interrupted) {
        throw nb::python_error(std::move(*interrupted));
    }
}

void Saver::raise_failure(const std::string& what) {
    sweep();
    const auto failed = queue_->take_failure();
    if (!failed) {
        return;
    }
    try {
        std::rethrow_exception(failed->failure());
    } catch (const Error& e) {
        throw Error(e.reason(), e.system_errno(), e.operation(), e.path(), e.offset(),
                    fmt::format("the earlier save of {} failed, and {} was not begun (saving again "
                                "goes on): {}",
                                failed->name(), what, e.what()));
    }
}

bool Saver::wait_idle(double timeout_s) {
    return wait_in_slices(timeout_s,
                          [queue = queue_](auto slice) { return queue->wait_idle(slice); });
}

void Saver::sweep() {
    std::vector<nb::object> done;
    const auto first = std::partition(keeps_.begin(), keeps_.end(),
                                      [](const auto& keep) { return !keep.first->done(); });
    std::for_each(first, keeps_.end(), [&](auto& keep) { done.push_back(std::move(keep.second)); });
    keeps_.erase(first, keeps_.end());
    // Their end may run Python code, which may come here again.
}

Saver::Staged Saver::stage(std::vector<std::span<const std::byte>>& spans, const Ranges& straight) {
    sweep();
    std::vector<std::size_t> which;
    std::vector<std::span<const std::byte>> pieces;
    for (std::size_t i = 0; i < spans.size(); ++i) {
        // The last range that begins at or before the piece.
        auto after = std::upper_bound(
            straight.begin(), straight.end(), spans[i].data(),
            [](const std::byte* begin, const auto& range) { return begin < range.first; });
        const bool as_it_is = after != straight.begin() &&
                              spans[i].data() + spans[i].size() <= std::prev(after)->second;
        if (!as_it_is && !spans[i].empty()) {
            which.push_back(i);
            pieces.push_back(spans[i]);
        }
    }
    Staged out;
    if (pieces.empty()) {
        return out;
    }
    if (store::Staging::area_bytes(pieces) > staging_->budget_bytes()) {
        out.all = false;
        out.tight = true;
        return out;
    }
    std::optional<store::StagedCopy> copy;
    using Clock = std::chrono::steady_clock;
    const auto began = Clock::now();
    bool waited = false;
    wait_in_slices(-1, [&](auto slice) {
        copy = staging_->copy(pieces, slice);
        waited = waited || !copy;
        if (waited) {
            out.waited_s = std::chrono::duration<double>(Clock::now() - began).count();
        }
        return copy.has_value();
    });
    out.copy = std::move(*copy);
    for (std::size_t i = 0; i < which.size(); ++i) {
        spans[which[i]] = out.copy.pieces()[i];
    }
    if (out.waited_s > kWaitToldS) {
        warn_at_runtime(
            fmt::format("penstock: save_async waited {:.1f} s for host memory: {} are the budget, "
                        "and saves in flight held them; save less often, or raise host_memory",
                        out.waited_s, base::format_bytes(staging_->budget_bytes())));
    }
    return out;
}

Saver::Staged Saver::stage(std::vector<std::span<const std::byte>>& spans, const CopyChoice& choice,
                           const std::vector<StorageMemory>& storages) {
    Staged staged;
    Ranges straight = choice.straight;
    bool from_devices = true;
    for (const StorageMemory& storage : storages) {
        from_devices = from_devices && (storage.copied || storage.bytes == 0);
        if (storage.copied) {
            straight.emplace_back(storage.data, storage.data + storage.bytes);
        }
    }
    std::sort(straight.begin(), straight.end());
    if (choice.copy) {
        staged = stage(spans, straight);
    }
    staged.all = staged.all && (from_devices || (choice.copy && choice.straight.empty()));
    if (!staged.all || straight.size() != choice.straight.size()) {
        nb::list keeps;
        for (const StorageMemory& storage : storages) {
            keeps.append(storage.keep);
        }
        staged.keeps = keeps;
    }
    return staged;
}

void Saver::warn_tight() {
    warn_at_runtime(
        "penstock: a copy of the tensors does not fit into host_memory (" +
        base::format_bytes(staging_->budget_bytes()) +
        "), so save_async waits until the save is done; raise host_memory, or use copy=False");
}

std::shared_ptr<store::PendingSave> Saver::add(store::SaveQueue::Work work, const std::string& name,
                                               bool staged, nb::object keeps) {
    check_interpreter_goes_on();
    keeps_.reserve(keeps_.size() + 1);  // what has begun keeps its memory
    auto save = queue_->add(std::move(work), name, staged);
    if (!keeps.is_none()) {
        keeps_.emplace_back(save, std::move(keeps));
    }
    return save;
}

CopyChoice::CopyChoice(nb::handle choice) {
    if (PyBool_Check(choice.ptr())) {
        copy = truth(choice);
        return;
    }
    for (const nb::handle row : nb::iter(choice)) {
        const auto* begin = reinterpret_cast<const std::byte*>(nb::cast<std::uintptr_t>(row[0]));
        straight.emplace_back(begin, begin + nb::cast<std::size_t>(row[1]));
    }
    std::sort(straight.begin(), straight.end());
}

bool PendingSaveObject::wait(bool staged_is_enough, double timeout_s) const {
    std::uint64_t told = ~std::uint64_t{0};
    const auto tell = [&] {
        const std::uint64_t done = save->done_bytes();
        if (!progress.is_none() && done != told && save->total_bytes() != 0) {
            told = done;
            progress(done, save->total_bytes());
        }
    };
    return wait_in_slices(timeout_s, [&](auto slice) {
        const bool over = staged_is_enough ? save->wait_staged(slice) : save->wait_done(slice);
        if (!progress.is_none()) {
            const nb::gil_scoped_acquire gil;
            tell();
        }
        return over;
    });
}

nb::object PendingSaveObject::result(double timeout_s) {
    if (!wait(false, timeout_s)) {
        PyErr_Format(PyExc_TimeoutError,
                     "the save of %s still runs after %s s and goes on; ask again, or cancel() it",
                     save->name().c_str(), fmt::format("{:g}", timeout_s).c_str());
        throw nb::python_error();
    }
    if (const std::exception_ptr failure = save->failure()) {
        std::rethrow_exception(failure);
    }
    if (!info || !*info) {
        return nb::none();
    }
    // A copy that nanobind made would end in std::bad_cast where memory has run out.
    return nb::cast(new CheckpointInfo(**info), nb::rv_policy::take_ownership);
}

namespace {

// ---- single files

struct FileSaver {
    explicit FileSaver(std::uint64_t budget_bytes) : saver(budget_bytes) {}
    Saver saver;
};

nb::object save_file_async(FileSaver& self, FileImageObject& made, nb::handle to, nb::handle copy,
                           nb::object progress) {
    const std::string path = path_bytes(to, "path", "");
    const CopyChoice choice(copy);
    Saver& saver = self.saver;
    saver.raise_failure("'" + path + "'");
    const std::shared_ptr<Engine> engine = opened(default_engine());
    const auto given = made.image.payloads();
    std::vector<std::span<const std::byte>> payloads(given.begin(), given.end());
    Saver::Staged staged = saver.stage(payloads, choice, made.payloads);
    struct Job {
        state::FileImage image;
        store::StagedCopy copy;
    };
    made.image.replace_payloads(std::move(payloads));
    auto job = std::make_shared<Job>(Job{std::move(made.image), std::move(staged.copy)});
    PendingSaveObject out;
    out.progress = std::move(progress);
    out.waited_s = staged.waited_s;
    out.save = saver.add(
        [job, engine, path](store::PendingSave& save) {
            state::save_file(*engine, FileSystem::local(), path, job->image, save.progress());
        },
        "'" + path + "'", staged.all, std::move(staged.keeps));
    job.reset();
    if (staged.tight) {
        saver.warn_tight();
        out.wait(true, -1);
    }
    return nb::cast(std::move(out));
}

const char* save_state_text(const PendingSaveObject& self) {
    switch (self.save->state()) {
        case store::PendingSave::State::kQueued:
            return "queued";
        case store::PendingSave::State::kStaged:
            return "staged";
        case store::PendingSave::State::kDurable:
            return "durable";
        case store::PendingSave::State::kFailed:
            return "failed";
    }
    return "";
}

nb::object exception_of(PendingSaveObject& self) {
    if (const std::exception_ptr failure = self.save->failure()) {
        try {
            std::rethrow_exception(failure);
        } catch (const Error& error) {
            set_python_error(error);
        } catch (const std::bad_alloc&) {
            PyErr_NoMemory();
        }
        nb::python_error raised;
        return nb::borrow(raised.value());
    }
    return nb::none();
}

void bind_pending_handling(nb::class_<PendingSaveObject>& type) {
    type.def(
            "cancel", [](PendingSaveObject& p) { p.save->cancel(); },
            "Stops it; result() then raises Cancelled, unless it was over. What was there before "
            "stays.")
        .def_prop_ro(
            "done_bytes", [](const PendingSaveObject& p) { return p.save->done_bytes(); },
            "Bytes written so far.")
        .def_prop_ro(
            "total_bytes", [](const PendingSaveObject& p) { return p.save->total_bytes(); },
            "Bytes to be written, 0 before it begins.")
        .def_ro("waited_s", &PendingSaveObject::waited_s,
                "Seconds that save_async waited for room in host_memory.")
        .def(
            "__await__",
            [](nb::handle self) {
                return nb::module_::import_("penstock._aio")
                    .attr("wait_for_save")(self)
                    .attr("__await__")();
            },
            nb::sig(
                "def __await__(self) -> collections.abc.Generator[typing.Any, None, typing.Any]"))
        .def(
            "__repr__",
            [](const PendingSaveObject& p) {
                return path_object("<penstock.PendingSave of " + p.save->name() + ", " +
                                   save_state_text(p) + ">");
            },
            nb::sig("def __repr__(self) -> str"));
}

void bind_pending_save(nb::module_& parent) {
    nb::class_<PendingSaveObject> type(
        parent, "PendingSave",
        "A save that goes on while training does. Made by save_async(); thread-safe.\n\n"
        "queued -> staged (the tensors may change) -> durable, or failed. Dropped, it goes on. Its "
        "failure is raised by\n"
        "result(), or by the next save at the latest; what is left at the end of the interpreter "
        "is warned of. In asyncio,\n"
        "`await pending` gives what result() does.");
    type.def(
            "staged", [](const PendingSaveObject& p) { return p.save->staged(); },
            "Whether the tensors may change. Never blocks.")
        .def(
            "durable",
            [](const PendingSaveObject& p) {
                return p.save->state() == store::PendingSave::State::kDurable;
            },
            "Whether it survives a power failure. Never blocks, and stays False for one that "
            "failed.")
        .def(
            "done", [](const PendingSaveObject& p) { return p.save->done(); },
            "Whether it is durable or has failed. Never blocks.")
        .def_prop_ro("state", save_state_text, "'queued', 'staged', 'durable' or 'failed'.")
        .def(
            "wait",
            [](const PendingSaveObject& p, nb::handle timeout) {
                return p.wait(false, timeout_seconds(timeout));
            },
            nb::arg("timeout") = nb::none(),
            nb::sig("def wait(self, timeout: float | None = None) -> bool"),
            "Until it is durable or has failed: then True. False after `timeout` seconds; it goes "
            "on, also after Ctrl-C.")
        .def(
            "wait_before_update",
            [](const PendingSaveObject& p, nb::handle timeout) {
                return p.wait(true, timeout_seconds(timeout));
            },
            nb::arg("timeout") = nb::none(),
            nb::sig("def wait_before_update(self, timeout: float | None = None) -> bool"),
            "Until the tensors may change: at once where a copy was made. False after `timeout` "
            "seconds.")
        .def(
            "result",
            [](PendingSaveObject& p, nb::handle timeout) {
                return p.result(timeout_seconds(timeout));
            },
            nb::arg("timeout") = nb::none(),
            nb::sig("def result(self, timeout: float | None = None) -> typing.Any"),
            "Waits, raises what it failed with, and gives the CheckpointInfo of a store's save "
            "(None for a file).\n\n"
            "timeout: seconds, then TimeoutError; it goes on.")
        .def("exception", exception_of, nb::sig("def exception(self) -> BaseException | None"),
             "What it failed with, or None (also while it runs); it then counts as told. Never "
             "blocks.");
    bind_pending_handling(type);
}

}  // namespace

void bind_async(nb::module_& parent) {
    bind_pending_save(parent);
    nb::module_ m = parent.def_submodule("_async", "Saves behind the caller's back; private.");
    nb::class_<FileSaver>(m, "FileSaver")
        .def(nb::init<std::uint64_t>(), nb::arg("host_memory"))
        .def("save", save_file_async, nb::arg("image"), nb::arg("path"), nb::arg("copy"),
             nb::arg("progress").none())
        .def(
            "finish", [](FileSaver& self) { self.saver.finish(); },
            "Until everything is durable or has failed; warns of what nobody was told of.");
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
                    saver->finish();
                }
                next = std::find_if(live.begin(), live.end(),
                                    [&](Saver* one) { return !finished.contains(one); });
            }
        },
        "Finishes what is in flight.");
}

}  // namespace penstock::python
