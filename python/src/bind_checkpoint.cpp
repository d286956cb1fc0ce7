// SPDX-License-Identifier: Apache-2.0
// Stores of checkpoints for penstock/_store/store.py. Private: what users see is CheckpointStore
// and Checkpoint of the package.
#include "arguments.hpp"
#include "base/align.hpp"
#include "base/text/units.hpp"
#include "bind.hpp"
#include "borrowed_memory.hpp"
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
#include "source_object.hpp"
#include "state.hpp"
#include "state/structure/structure.hpp"
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
#include <unordered_map>

namespace penstock::python {

namespace {

std::vector<std::string> paths_of(nb::handle folders) {
    std::vector<std::string> out;
    for (const nb::handle folder : nb::iter(folders)) {
        out.push_back(path_bytes(folder, "folder", ""));
    }
    return out;
}

class CheckpointSource final : public SourceObject {
public:
    explicit CheckpointSource(std::shared_ptr<Checkpoint> checkpoint)
        : checkpoint_(std::move(checkpoint)),
          skeleton_(state::skeleton_of(checkpoint_->structure(), checkpoint_->tensors())) {
        for (const CheckpointTensor& t : checkpoint_->tensors()) {
            by_name_.emplace(t.name, &t);
        }
        path = checkpoint_->info().path;
        place_items();
    }

    /// Makes a part of the state all of it, if one is wanted, and not a tensor of that name.
    void cut(Choice& choice, std::string_view alone) {
        auto part = choice.part_of(skeleton_.tree);
        if (part && by_name_.count(alone) == 0) {
            std::vector<std::string> sources;
            for (const std::uint32_t storage : part->storages) {
                sources.push_back(std::move(skeleton_.sources[storage]));
            }
            skeleton_ = {std::move(part->tree), std::move(sources)};
            place_items();
            is_part = true;
        }
    }
    /// Adds a stored tensor, which need not be in the state: (item, type, shape), or None.
    nb::object add(nb::handle name) {
        const auto found = by_name_.find(text(name));
        if (found == by_name_.end()) {
            return nb::none();
        }
        const CheckpointTensor& t = *found->second;
        skeleton_.sources.push_back(t.name);
        skeleton_.tree.storages.push_back({t.bytes, "cpu", t.name});
        place_items();
        return nb::make_tuple(places_.size() - 1, t.dtype, nb::cast(t.shape));
    }

    [[nodiscard]] const char* kind() const override { return "checkpoint"; }
    const format::ValueTree& tree() override { return skeleton_.tree; }
    std::vector<std::optional<ElementType>> set_types(ElementType to) override {
        return state::set_types(skeleton_.tree, to);
    }
    [[nodiscard]] Place place(std::size_t item) const override { return places_.at(item); }
    [[nodiscard]] std::optional<state::StoredShape> stored(std::size_t item) const override {
        const CheckpointTensor& t = tensor(item);
        return state::StoredShape{t.name, t.dtype, t.shape};
    }
    [[nodiscard]] ItemRange checkable(const ItemRange& part) const override {
        const CheckpointTensor& t = tensor(part.item);
        const bool of_bytes = t.dtype == "U8" && t.shape.size() == 1;
        return part.bytes == 0 || of_bytes ? part : ItemRange{part.item, 0, t.bytes};
    }
    void read(std::span<const ItemRead> wanted, bool /*fresh*/, bool /*faulted_in*/,
              const Progress& progress) override {
        std::vector<TensorRead> reads;
        for (const ItemRead& one : wanted) {
            if (one.into.bytes == 0) {
                continue;
            }
            const CheckpointTensor& t = tensor(one.part.item);
            TensorRead& read = reads.emplace_back(
                TensorRead{t.name, one.into, one.box.begin, one.box.end, one.strides_bytes});
            if (one.box.begin.empty() && one.part.bytes != t.bytes) {
                read.begin = {one.part.begin};
                read.end = {one.part.begin + one.part.bytes};
            }
        }
        checkpoint_->read(reads, true, progress);
    }

private:
    // In the order of the state: parts of an item may lie in several shards. Large ones begin at a
    // page, as in their files.
    void place_items() {
        constexpr std::uint64_t kSmallAlignment = 64;
        places_.clear();
        std::uint64_t at = 0;
        for (const std::string& source : skeleton_.sources) {
            const std::uint64_t bytes = by_name_.at(source)->bytes;
            at = base::align_up(at, bytes >= base::kPageBytes ? base::kPageBytes : kSmallAlignment);
            places_.push_back({0, at, bytes});
            at += bytes;
        }
    }
    [[nodiscard]] const CheckpointTensor& tensor(std::size_t item) const {
        return *by_name_.at(skeleton_.sources[item]);
    }

    std::shared_ptr<Checkpoint> checkpoint_;
    std::unordered_map<std::string_view, const CheckpointTensor*> by_name_;
    state::Skeleton skeleton_;
    std::vector<Place> places_;
};

struct CheckpointObject {
    CheckpointObject(nb::handle path, nb::handle cache) : engine(opened(default_engine())) {
        const std::string bytes = path_bytes(path, "path", "");
        const CachePolicy policy = cache_policy_of(cache);
        const nb::gil_scoped_release nogil;
        checkpoint = std::make_shared<Checkpoint>(engine, FileSystem::any(), bytes, policy);
    }
    CheckpointObject(std::shared_ptr<Engine> own, Checkpoint&& opened_one)
        : engine(std::move(own)), checkpoint(std::make_shared<Checkpoint>(std::move(opened_one))) {}

    std::shared_ptr<Engine> engine;
    std::shared_ptr<Checkpoint> checkpoint;
};

// The source of a load. `wanted`, `as_wanted`, `one`: see Choice.
CheckpointSource source_of(const CheckpointObject& self, nb::handle wanted, bool as_wanted,
                           bool one) {
    std::optional<CheckpointSource> out;
    {
        const nb::gil_scoped_release nogil;
        out.emplace(self.checkpoint);
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
    } catch (const Error&) {
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

nb::object open_newest_of_store(StoreObject& self, nb::handle number, nb::handle use,
                                nb::handle passed_over) {
    const auto store = self.open();
    std::optional<std::uint64_t> step;
    if (!number.is_none()) {
        step = nb::cast<std::uint64_t>(number);
    }
    std::optional<nb::python_error> raised;
    const auto give = [&](Checkpoint opened_one) {
        const nb::gil_scoped_acquire gil;
        try {
            use(nb::cast(new CheckpointObject(self.engine, std::move(opened_one)),
                         nb::rv_policy::take_ownership));
        } catch (nb::python_error& error) {
            if (const auto known = about_a_file(error)) {
                throw Error(*known);
            }
            raised.emplace(std::move(error));
            throw Error(ErrorCode::kCancelled, 0, "load", "", kNoOffset, "Python raised");
        }
    };
    try {
        return newest(passed_over,
                      [&](auto* skipped) { return store->open_newest(give, step, skipped); });
    } catch (const Error&) {
        if (!raised) {
            throw;
        }
    }
    throw nb::python_error(std::move(*raised));
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
                options.at_path = options.values_of_rank_0 = at_path;
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
             nb::arg("changing") = "raise")
        .def("save_async", save_to_store_async, nb::arg("state").none(), nb::arg("step"),
             nb::arg("pinned"), nb::arg("metadata"), nb::arg("default").none(), nb::arg("copy"),
             nb::arg("progress").none(), nb::arg("changing") = "raise")
        .def(
            "collect",
            [](StoreObject& self, nb::handle items, nb::handle row, nb::handle changing) {
                static_cast<void>(self.writable());
                self.saver.raise_failure("the save of an iterator");
                return collect(self.saver, items, row, changing);
            },
            nb::arg("items"), nb::arg("row"), nb::arg("changing"))
        .def("latest", latest_of_store, nb::arg("passed_over"))
        .def("open_newest", open_newest_of_store, nb::arg("step").none(), nb::arg("use"),
             nb::arg("passed_over"))
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
                 return new CheckpointObject(self.engine, std::move(*opened_one));
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
        .def("source", source_of, nb::arg("wanted").none(), nb::arg("as_wanted"), nb::arg("one"))
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
