// SPDX-License-Identifier: Apache-2.0
// Stores of checkpoints for penstock/_store/store.py. Private: what users see is CheckpointStore
// and Checkpoint of the package.
#include "arguments.hpp"
#include "base/text/units.hpp"
#include "bind.hpp"
#include "borrowed_memory.hpp"
#include "checkpoint_source.hpp"
#include "collected.hpp"
#include "engine_object.hpp"
#include "errors.hpp"
#include "file_image_object.hpp"
#include "file_object.hpp"
#include "format/pickle/pickled.hpp"
#include "metadata.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "ranks.hpp"
#include "request.hpp"
#include "saved_tensors.hpp"
#include "saver.hpp"
#include "state.hpp"
#include "store_object.hpp"
#include "store_saving.hpp"
#include "streams.hpp"
#include "tensor_stream.hpp"

#include <penstock/checkpoint.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>

namespace penstock::python {

namespace {

std::vector<std::string> paths_of(nb::handle folders) {
    std::vector<std::string> out;
    for (const nb::handle folder : nb::iter(folders)) {
        out.push_back(path_bytes(folder, "folder", ""));
    }
    return out;
}

struct CheckpointObject {
    CheckpointObject(nb::handle path, nb::handle cache) : engine(opened(default_engine())) {
        const std::string bytes = path_bytes(path, "path", "");
        const CachePolicy policy = cache_policy_of(cache);
        const nb::gil_scoped_release nogil;
        checkpoint = std::make_shared<Checkpoint>(engine, FileSystem::any(), bytes, policy);
    }
    CheckpointObject(const StoreObject& store, Checkpoint&& opened_one)
        : engine(store.engine),
          checkpoint(std::make_shared<Checkpoint>(std::move(opened_one))),
          rank(store.rank),
          ranks(store.ranks) {}

    std::shared_ptr<Engine> engine;
    std::shared_ptr<Checkpoint> checkpoint;
    std::uint32_t rank = 0;  ///< that loads, of so many
    std::uint32_t ranks = 1;
};

// The source of a load. `as_list`: of what each rank has for itself.
// `wanted`, `as_wanted`, `one`: see Choice.
CheckpointSource source_of(const CheckpointObject& self, nb::handle wanted, bool as_wanted,
                           bool one, bool as_list) {
    std::optional<CheckpointSource> out;
    {
        const nb::gil_scoped_release nogil;
        out.emplace(self.checkpoint);
        if (out->has_per_rank() && (as_list || self.checkpoint->info().ranks == self.ranks)) {
            out->take_per_rank(self.rank, as_list);
        }
    }
    Choice choice(wanted, as_wanted, one);
    try {
        out->cut(choice, one ? text(wanted[0]) : std::string());
    } catch (const Error&) {
        choice.raise_lacking(out->path);
        throw;
    }
    return std::move(*out);
}

// A box of a tensor, to memory that has its size; the bytes read from storage.
std::uint64_t read_box(const CheckpointObject& self, nb::handle name, nb::handle into,
                       nb::handle begin, nb::handle end) {
    const BorrowedMemory memory = borrow_anywhere(into, "into", true, std::nullopt);
    const TensorRead wanted{word_of(name, "name"), memory.memory(),
                            counts_of(begin, "begin", "elements"),
                            counts_of(end, "end", "elements")};
    std::uint64_t bytes = 0;
    run_with_progress(nb::none(), [&](const Progress& on_progress) {
        bytes = self.checkpoint->read({&wanted, 1}, true, on_progress);
    });
    return bytes;
}

nb::list checkpoint_problems(const CheckpointObject& self, nb::handle progress) {
    std::vector<CheckpointProblem> found;
    run_with_progress(progress, [&](const Progress& on_progress) {
        found = self.checkpoint->verify(on_progress);
    });
    nb::list out;
    for (const CheckpointProblem& p : found) {
        const nb::object offset =
            p.offset == kNoOffset ? nb::none() : nb::object(nb::int_(p.offset));
        out.append(nb::make_tuple(path_object(p.path), p.tensor, offset, path_object(p.message)));
    }
    return out;
}

void save_checkpoint(const CheckpointObject& self, nb::handle to, nb::handle metadata,
                     std::uint64_t shard_bytes, nb::handle progress, bool sync) {
    TensorStream stream = penstock::stream_of(*self.checkpoint);
    stream.metadata = word_pairs_of(metadata, "metadata");
    save_stream(to, stream, progress, {.shard_bytes = shard_bytes, .sync = sync});
}

// Each of them is given to `passed_over`: (path, why).
void report(const std::vector<CheckpointInfo>& skipped, nb::handle passed_over) {
    for (const CheckpointInfo& info : skipped) {
        passed_over(path_object(info.path), path_object(info.problem));
    }
}

// find(skipped) without the GIL, and then what was passed over, also where it throws.
template <typename Find>
nb::object newest(nb::handle passed_over, Find find) {
    std::vector<CheckpointInfo> skipped;
    std::optional<CheckpointInfo> found;
    try {
        const nb::gil_scoped_release nogil;
        found = find(&skipped);
    } catch (...) {
        report(skipped, passed_over);
        throw;
    }
    report(skipped, passed_over);
    return found ? nb::cast(std::move(*found)) : nb::none();
}

nb::object latest_of_store(StoreObject& self, nb::handle passed_over) {
    const auto store = self.open();
    return newest(passed_over, [&](auto* skipped) { return store->latest(skipped); });
}

// Says that a function of Python raised: of what, for other ranks.
class PythonRaised final : public std::exception {
public:
    explicit PythonRaised(std::string text) : text_(std::move(text)) {}
    [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

private:
    std::string text_;
};

// A load, and what Python raised in it: by `use`, or because of a signal.
class StoreLoad {
public:
    StoreLoad(StoreObject& self, nb::handle use) : self_(self), use_(use) {}

    // use(checkpoint, ready, moved) for each that is tried. Of one rank both are None.
    [[nodiscard]] nb::object run(const std::shared_ptr<CheckpointStore>& store, LoadOptions options,
                                 nb::handle passed_over) {
        options.look = [this] { look(); };
        options.waiting = [](const std::string& whom) {
            const nb::gil_scoped_acquire gil;
            nb::module_::import_("penstock._base.log").attr("waits")(path_object(whom));
        };
        note_call();
        try {
            return newest(passed_over, [&](auto* skipped) {
                return store->load([this](Loading one) { give(std::move(one)); }, options, skipped);
            });
        } catch (const PythonRaised&) {
            throw nb::python_error(std::move(*raised_));
        } catch (const Error&) {
            if (!is_interrupted_) {
                throw;
            }
        }
        throw nb::python_error(std::move(*raised_));
    }

private:
    [[noreturn]] void raise(nb::python_error& error) {
        if (const auto known = about_a_file(error)) {
            throw Error(*known);
        }
        const nb::handle type = error.type();
        const bool is_error =
            PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()),
                             reinterpret_cast<PyTypeObject*>(PyExc_Exception)) != 0;
        const std::string text = fmt::format("{}: {}", nb::str(type.attr("__name__")).c_str(),
                                             nb::str(error.value()).c_str());
        raised_.emplace(std::move(error));
        if (is_error) {
            throw PythonRaised(text);
        }
        is_interrupted_ = true;  // Ctrl-C: the other ranks are not waited for
        throw Error(ErrorCode::kCancelled, 0, "load", "", kNoOffset, text);
    }
    void look() {
        const nb::gil_scoped_acquire gil;
        if (PyErr_CheckSignals() != 0) {
            nb::python_error error;
            raise(error);
        }
    }
    void give(Loading one) {
        const nb::gil_scoped_acquire gil;
        nb::object ready = nb::none();
        nb::object moved = nb::none();
        if (!self_.is_alone()) {
            ready = nb::cpp_function([wait = std::move(one.ready)] {
                const nb::gil_scoped_release nogil;
                wait();
            });
            moved = nb::cpp_function(
                [tell = std::move(one.progress)](std::uint64_t done, std::uint64_t total) {
                    const nb::gil_scoped_release nogil;
                    static_cast<void>(tell(done, total));
                });
        }
        try {
            use_(nb::cast(new CheckpointObject(self_, std::move(one.checkpoint)),
                          nb::rv_policy::take_ownership),
                 ready, moved);
        } catch (nb::python_error& error) {
            raise(error);
        }
    }

    StoreObject& self_;
    nb::handle use_;
    std::optional<nb::python_error> raised_;
    bool is_interrupted_ = false;
};

nb::object load_from_store(StoreObject& self, nb::handle step, nb::handle generation,
                           nb::handle use, nb::handle passed_over) {
    const auto store = self.open();
    LoadOptions options;
    if (!step.is_none()) {
        options.step = nb::cast<std::uint64_t>(step);
    }
    if (!generation.is_none()) {
        options.generation = nb::cast<std::uint64_t>(generation);
    }
    if (!self.is_alone()) {  // it is a call of all ranks, as a save, and comes after those in
                             // flight
        static_cast<void>(self.writable());
        self.saver.wait_idle(-1);
    }
    return StoreLoad(self, use).run(store, std::move(options), passed_over);
}

void bind_checkpoint_info(nb::module_& parent) {
    nb::class_<CheckpointInfo>(parent, "CheckpointInfo",
                               "The description of a checkpoint, read without its tensors.")
        .def_ro("generation", &CheckpointInfo::generation,
                "Rises with every save; what \"newest\" means.")
        .def_ro("step", &CheckpointInfo::step, "The caller's own number; may repeat.")
        .def_prop_ro(
            "path", [](const CheckpointInfo& i) { return path_object(i.path); },
            nb::sig("def path(self) -> str"), "Its folder.")
        .def_prop_ro(
            "saved_unix_s",
            [](const CheckpointInfo& i) { return static_cast<double>(i.saved_unix_ns) / 1e9; },
            "When, seconds since 1970.")
        .def_ro("tensors", &CheckpointInfo::tensors, "How many.")
        .def_ro("tensor_bytes", &CheckpointInfo::tensor_bytes, "Bytes of all tensors.")
        .def_ro("written_bytes", &CheckpointInfo::written_bytes,
                "Bytes of tensors that this save wrote; the rest was linked.")
        .def_ro("shards", &CheckpointInfo::shards, "Files of tensors.")
        .def_ro("ranks", &CheckpointInfo::ranks, "Those that saved it together; 1: one process.")
        .def_ro("linked_shards", &CheckpointInfo::linked_shards,
                "Those of them that were linked from earlier checkpoints.")
        .def_ro("pinned", &CheckpointInfo::pinned, "Kept whatever `keep` says.")
        .def_prop_ro(
            "metadata", [](const CheckpointInfo& i) { return metadata_object(i.metadata); },
            nb::sig("def metadata(self) -> dict[str, str | float | bool | None]"),
            "What was given to save(metadata=), a new dict. Integers stay int.")
        .def_prop_ro(
            "note", [](const CheckpointInfo& i) { return path_object(i.note); },
            nb::sig("def note(self) -> str"),
            "From save(): empty, or anything out of the ordinary: no direct I/O here, and why; "
            "shards "
            "that could\n"
            "not be linked; older checkpoints that could not be removed.")
        .def_prop_ro(
            "problem", [](const CheckpointInfo& i) { return path_object(i.problem); },
            nb::sig("def problem(self) -> str"), "Empty, or why it cannot be used.")
        .def(
            "__repr__",
            [](const CheckpointInfo& i) {
                return path_object(fmt::format(
                    "<penstock.CheckpointInfo generation={} step={} {} in {} shards{}{}>",
                    i.generation, i.step, base::format_bytes(i.tensor_bytes), i.shards,
                    i.note.empty() ? "" : ", note: " + i.note,
                    i.problem.empty() ? "" : ", problem: " + i.problem));
            },
            nb::sig("def __repr__(self) -> str"));
}

void bind_store(nb::module_& m) {
    nb::class_<StoreObject>(m, "Store")
        .def("__reduce__", [](nb::handle) { cannot_pickle("CheckpointStore", "its folders"); })
        .def(
            "__init__",
            [](StoreObject* self, nb::handle folders, std::uint32_t keep, std::uint32_t keep_every,
               std::uint64_t keep_every_steps, std::uint32_t keep_best, nb::handle metric,
               bool greater_is_better, std::uint64_t shard_bytes, bool checksums, bool incremental,
               bool read_back, std::uint64_t host_memory, std::uint32_t lock_wait_ms,
               nb::handle cache, nb::handle ranks, std::uint32_t rank_wait_ms, bool at_path) {
                StoreOptions options;
                options.keep = keep;
                options.keep_every = keep_every;
                options.keep_every_steps = keep_every_steps;
                options.keep_best = keep_best;
                options.metric = {word_of(metric, "metric"), greater_is_better};
                options.shard_bytes = shard_bytes;
                options.checksums = checksums;
                options.incremental = incremental;
                options.read_back = read_back;
                options.lock_wait_ms = lock_wait_ms;
                options.cache = cache_policy_of(cache);
                options.host_memory_bytes = host_memory;
                options.ranks = ranks_of(ranks);
                options.rank_wait_ms = rank_wait_ms;
                options.at_path = at_path;
                new (self) StoreObject(paths_of(folders), options);
            },
            nb::arg("folders"), nb::arg("keep"), nb::arg("keep_every"), nb::arg("keep_every_steps"),
            nb::arg("keep_best"), nb::arg("metric"), nb::arg("greater_is_better"),
            nb::arg("shard_bytes"), nb::arg("checksums"), nb::arg("incremental"),
            nb::arg("read_back"), nb::arg("host_memory"), nb::arg("lock_wait_ms"),
            nb::arg("cache").none(), nb::arg("ranks").none() = nb::none(),
            nb::arg("rank_wait_ms") = StoreOptions().rank_wait_ms, nb::arg("at_path") = false)
        .def("refuse_save", [](StoreObject& self, nb::handle why) { self.refuse_save(text(why)); })
        .def_static("has_called", has_called_store)
        .def_static("forget_call", forget_call)
        .def("save", save_to_store, nb::arg("state").none(), nb::arg("step"), nb::arg("pinned"),
             nb::arg("metadata"), nb::arg("default").none(), nb::arg("progress").none(),
             nb::arg("changing") = "raise", nb::arg("replicas") = "equal")
        .def("save_async", save_to_store_async, nb::arg("state").none(), nb::arg("step"),
             nb::arg("pinned"), nb::arg("metadata"), nb::arg("default").none(), nb::arg("copy"),
             nb::arg("progress").none(), nb::arg("changing") = "raise",
             nb::arg("replicas") = "equal")
        .def(
            "collect",
            [](StoreObject& self, nb::handle items, nb::handle row, nb::handle changing) {
                static_cast<void>(self.writable());
                self.raise_failure("the save of an iterator");
                return collect(self.saver, items, row, changing);
            },
            nb::arg("items"), nb::arg("row"), nb::arg("changing"))
        .def("latest", latest_of_store, nb::arg("passed_over"))
        .def("load", load_from_store, nb::arg("step").none(), nb::arg("generation").none(),
             nb::arg("use"), nb::arg("passed_over"))
        .def("list",
             [](StoreObject& self) {
                 const auto store = self.open();
                 std::vector<CheckpointInfo> found;
                 {
                     const nb::gil_scoped_release nogil;
                     found = store->list();
                 }
                 return list_of(std::move(found));
             })
        .def("best",
             [](StoreObject& self, nb::handle metric, bool greater_is_better, std::size_t count,
                nb::handle passed_over) {
                 const auto store = self.open();
                 const Metric wanted{word_of(metric, "metric"), greater_is_better};
                 std::vector<CheckpointInfo> found;
                 std::vector<CheckpointInfo> skipped;
                 {
                     const nb::gil_scoped_release nogil;
                     found = store->best(wanted, count, &skipped);
                 }
                 report(skipped, passed_over);
                 return list_of(std::move(found));
             })
        .def("open",
             [](StoreObject& self, std::uint64_t generation) {
                 const auto store = self.open();
                 std::optional<Checkpoint> opened_one;
                 {
                     const nb::gil_scoped_release nogil;
                     opened_one.emplace(store->open(generation));
                 }
                 return new CheckpointObject(self, std::move(*opened_one));
             })
        .def("pin",
             [](StoreObject& self, std::uint64_t generation, bool pinned) {
                 const auto store = self.writable();
                 const nb::gil_scoped_release nogil;
                 store->pin(generation, pinned);
             })
        .def("remove",
             [](StoreObject& self, std::uint64_t generation) {
                 const auto store = self.writable();
                 const nb::gil_scoped_release nogil;
                 store->remove(generation);
             })
        .def("collect",
             [](StoreObject& self) {
                 const auto store = self.writable();
                 const nb::gil_scoped_release nogil;
                 return store->collect();
             })
        .def("folders",
             [](StoreObject& self) {
                 nb::list out;
                 for (const std::string& folder : self.open()->folders()) {
                     out.append(path_object(folder));
                 }
                 return out;
             })
        .def("wait",
             [](StoreObject& self, double timeout_s) {
                 if (timeout_s < 0) {
                     self.check_wait_ends();
                 }
                 return self.saver.wait_idle(timeout_s);
             })
        .def("in_flight", [](StoreObject& self) { return self.saver.queue().in_flight(); })
        .def("raise_failure", [](StoreObject& self) { self.saver.raise_failure({}); })
        .def("host_memory",
             [](StoreObject& self) {
                 store::Staging& staging = self.saver.staging();
                 return nb::make_tuple(staging.budget_bytes(), staging.used_bytes(),
                                       staging.kept_bytes());
             })
        .def(
            "close",
            [](StoreObject& self, bool raise) {
                self.check_wait_ends();
                self.close(raise ? Saver::Failures::kRaise : Saver::Failures::kWarn);
            },
            nb::arg("raise_errors"));
}

}  // namespace

void bind_checkpoint(nb::module_& parent) {
    nb::module_ m = parent.def_submodule("_checkpoint", "Stores of checkpoints; private.");
    bind_ranks(m);
    bind_checkpoint_info(parent);
    bind_store(m);
    m.def(
        "pickled_type",
        [](const nb::bytes& data) {
            return format::pickled_type({data.c_str(), data.size()});
        },
        nb::arg("data"));
    nb::class_<CheckpointSource, SourceObject>(m, "CheckpointSource")
        .def_prop_ro("per_rank_place", &CheckpointSource::per_rank_place)
        .def("drop_per_rank",
             [](CheckpointSource& self) { self.take_per_rank(std::nullopt, false); })
        .def("add", &CheckpointSource::add, nb::arg("name"));
    nb::class_<CheckpointObject>(m, "Checkpoint")
        .def("__reduce__", [](nb::handle) { cannot_pickle("Checkpoint", "its path"); })
        .def(nb::init<nb::handle, nb::handle>(), nb::arg("path"), nb::arg("cache").none())
        .def_prop_ro("info", [](const CheckpointObject& c) { return c.checkpoint->info(); })
        .def("tensors",
             [](const CheckpointObject& c) {
                 nb::list out;
                 for (const CheckpointTensor& t : c.checkpoint->tensors()) {
                     out.append(nb::make_tuple(t.name, t.dtype, nb::cast(t.shape), t.bytes,
                                               t.changed_generation));
                 }
                 return out;
             })
        .def("source", source_of, nb::arg("wanted").none(), nb::arg("as_wanted"), nb::arg("one"),
             nb::arg("as_list"))
        .def_ro("ranks", &CheckpointObject::ranks)
        .def("read", read_box, nb::arg("name"), nb::arg("into"), nb::arg("begin"), nb::arg("end"))
        .def("save", save_checkpoint, nb::arg("path"), nb::arg("metadata"), nb::arg("shard_bytes"),
             nb::arg("progress").none(), nb::arg("sync"))
        .def("verify", checkpoint_problems, nb::arg("progress").none())
        .def("close", [](CheckpointObject& c) {
            const nb::gil_scoped_release nogil;
            c.checkpoint->close();
        });
}

}  // namespace penstock::python
