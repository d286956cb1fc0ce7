// SPDX-License-Identifier: Apache-2.0
// What python/penstock/features stands on: feature files, written and open for gathers.
#include "arguments.hpp"
#include "base/raise.hpp"
#include "base/result.hpp"
#include "bind.hpp"
#include "borrowed_memory.hpp"
#include "engine_object.hpp"
#include "file_object.hpp"
#include "format/fault.hpp"
#include "format/torch_types.hpp"
#include "future_object.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "row_numbers.hpp"
#include "streams.hpp"
#include "transfer_object.hpp"

#include <penstock/features.hpp>
#include <penstock/tensor.hpp>

#include <sys/eventfd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

std::shared_ptr<Engine> features_engine() {
    EngineObject& made = default_engine();
    made.used = true;
    return opened(made);
}

nb::tuple shape_tuple(const std::vector<std::uint64_t>& shape) {
    nb::list out;
    for (const std::uint64_t length : shape) {
        out.append(length);
    }
    return nb::tuple(out);
}

// torch's, where an element has whole bytes and torch has such elements.
std::string torch_name(const std::string& dtype) {
    const auto type = element_type_named(dtype);
    const format::TorchType* const row = type ? format::torch_type(*type) : nullptr;
    return row == nullptr || row->bits % 8 != 0 ? dtype : row->torch;
}

nb::dict table_dict(const FeatureTable& table) {
    nb::dict out;
    out["name"] = nb::str(table.name.c_str());
    out["dtype"] = torch_name(table.dtype);
    out["row_shape"] = shape_tuple(table.row_shape);
    out["rows"] = table.rows;
    out["row_bytes"] = table.row_bytes;
    out["stride_bytes"] = table.stride_bytes;
    out["touched_512"] = table.touched_512;
    out["touched_4096"] = table.touched_4096;
    return out;
}

nb::dict file_dict(const FeatureFile& file) {
    nb::dict out;
    nb::list files;
    for (const std::string& path : file.files) {
        files.append(path_object(path));
    }
    nb::list tables;
    for (const FeatureTable& table : file.tables) {
        tables.append(table_dict(table));
    }
    out["path"] = path_object(file.path);
    out["id"] = file.id;
    out["is_npy"] = file.is_npy;
    out["files"] = nb::tuple(files);
    out["bytes"] = file.bytes;
    out["tables"] = tables;
    return out;
}

// Refuses what no number of a row can be as the store refuses a number past the last row.
RowNumbers ids_of(nb::handle ids, const FeatureStore& store, std::uint32_t table,
                  const char* operation) {
    return {ids, "ids", [&](std::size_t index, const std::string& number) {
                const FeatureTable& its = store.tables().at(table);
                const std::string last =
                    std::to_string(its.rows - std::min<std::uint64_t>(its.rows, 1));
                base::raise(
                    base::error(ErrorCode::kInvalidArgument, operation,
                                "ids[" + std::to_string(index) + "]: table " +
                                    format::shown(its.name) + " has no row " + number + "; " +
                                    (its.rows == 0 ? "it has no rows" : "expected 0 to " + last),
                                store.file().path));
            }};
}

// Rows of tables that a call asks for, and the objects that have their memory.
struct GatherArguments {
    GatherArguments(const FeatureStore& store, nb::handle rows, nb::handle stream) {
        const std::optional<StreamHandle> given = stream_of(stream);
        options.stream = given;
        const std::size_t count = nb::len(rows);
        numbers.reserve(count);
        for (const nb::handle row : nb::iter(rows)) {
            const nb::object ids = row[1];
            const nb::object out = row[2];
            BorrowedMemory memory = borrow_anywhere(out, "out", true, given);
            if (memory.where == MemoryKind::kDevice && !given) {
                if (options.stream && *options.stream != memory.stream) {
                    raise_value(
                        "out: its memory is on several streams or GPUs; gather for each in "
                        "a call of its own, or give stream");
                }
                options.stream = memory.stream;
            }
            if (memory.stream_is_named && given) {
                const nb::gil_scoped_release nogil;
                wait_for_streams({&memory.stream, 1});
            }
            keeps.push_back(std::move(memory.keep));
            const auto table = static_cast<std::uint32_t>(nb::cast<std::uint64_t>(row[0]));
            numbers.push_back(ids_of(ids, store, table, "gather"));
            requests.push_back({table, numbers.back().values(), memory.memory()});
        }
    }

    Keeps keeps;
    std::vector<RowNumbers> numbers;
    std::vector<FeatureRequest> requests;
    FeatureGatherOptions options;
};

// A gather under way, as penstock.Future: its result is what it fills.
class GatherObject final : public FutureObject {
public:
    GatherObject(FeatureGather gather, HeldPtr held, nb::object result)
        : gather_(std::move(gather)), held_(std::move(held)), result_(std::move(result)) {}

    [[nodiscard]] bool done() override {
        const bool over = !held_->transfer.valid() || held_->transfer.done();
        if (over) {
            settle();
        }
        return over;
    }
    [[nodiscard]] bool cancelled() override {
        return done() && held_->transfer.valid() &&
               held_->transfer.status() == TransferStatus::kCancelled;
    }
    void cancel() override {
        const nb::gil_scoped_release nogil;
        if (held_->transfer.valid()) {
            held_->transfer.cancel();
        }
    }
    [[nodiscard]] bool wait(double timeout_s) override {
        if (held_->transfer.valid() && !python::wait(*held_, timeout_s)) {
            return false;
        }
        settle();
        return true;
    }
    [[nodiscard]] nb::object value() override {
        if (held_->transfer.valid()) {
            try {
                held_->transfer.wait();
            } catch (const Error& error) {
                gather_.finish(&error);
            }
        }
        return result_;
    }
    void notify(int eventfd) override {
        if (held_->transfer.valid()) {
            held_->transfer.notify(eventfd);
        } else if (::eventfd_write(eventfd, 1) != 0) {
            raise_value("eventfd: this is no descriptor of an eventfd; give os.eventfd(0)");
        }
    }
    [[nodiscard]] bool works_at_end() const override { return true; }
    [[nodiscard]] std::string name() const override { return "the gather"; }

private:
    // Before anybody uses the memory for something else.
    void settle() {
        held_->let_go();
        if (held_->transfer.status() == TransferStatus::kDone) {
            const nb::gil_scoped_release nogil;
            gather_.finish();
        }
    }

    FeatureGather gather_;
    HeldPtr held_;
    nb::object result_;
};

constexpr std::uint64_t kRamMax = FeatureStoreOptions::kRamIfSmall - 1;

struct FeatureStoreObject {
    std::optional<FeatureStore> store;
};

void open_store(FeatureStoreObject& self, nb::handle path, nb::handle ram, nb::handle policy,
                nb::handle hot, nb::handle device_memory, std::int32_t device, bool verify,
                nb::handle progress) {
    FeatureStoreOptions options;
    options.verify = verify;
    options.device_bytes = size_of(device_memory, "device_memory", "bytes");
    options.device = device;
    options.ram_bytes =
        ram.is_none() ? FeatureStoreOptions::kRamIfSmall : size_of(ram, "ram", "bytes", kRamMax);
    options.policy = row_policy(word_of(policy, "policy"));
    for (const nb::handle rows : nb::iter(hot)) {
        const RowNumbers ids(nb::object(rows[1]), "hot");
        options.hot.push_back(
            {word_of(nb::object(rows[0]), "hot"), {ids.values().begin(), ids.values().end()}});
    }
    const std::string name = path_bytes(path, "path", "");
    const std::shared_ptr<Engine> engine = features_engine();
    run_with_progress(progress, [&](const Progress& report) {
        options.progress = report;
        self.store.emplace(FeatureStore::open(engine, name, options));
    });
}

bool hint_rows(FeatureStoreObject& self, std::uint32_t table, nb::handle ids) {
    const RowNumbers numbers = ids_of(ids, *self.store, table, "hint");
    const nb::gil_scoped_release nogil;
    return self.store->hint(table, numbers.values());
}

void gather_now(FeatureStoreObject& self, nb::handle rows, nb::handle stream) {
    sweep_orphans();
    const GatherArguments arguments(*self.store, rows, stream);
    FeatureGather gather;
    {
        const nb::gil_scoped_release nogil;
        gather = self.store->run(arguments.requests, arguments.options);
    }
    try {
        static_cast<void>(wait_in_slices(
            -1, [&gather](auto slice) { return gather.wait_for(slice).has_value(); }));
    } catch (...) {
        if (!gather.done()) {
            const nb::gil_scoped_release nogil;
            gather.cancel();
            try {
                static_cast<void>(gather.wait());
            } catch (const Error&) {  // as was asked for
            }
        }
        throw;
    }
}

nb::object gather_later(FeatureStoreObject& self, nb::handle rows, nb::handle result,
                        nb::handle stream) {
    sweep_orphans();
    HeldPtr held(new Held{});
    GatherArguments arguments(*self.store, rows, stream);
    held->keeps = std::move(arguments.keeps);
    FeatureGather gather;
    {
        const nb::gil_scoped_release nogil;
        gather = self.store->gather_async(arguments.requests, arguments.options);
    }
    held->transfer = gather.take_transfer();
    return nb::cast(
        new GatherObject(std::move(gather), std::move(held), nb::borrow<nb::object>(result)),
        nb::rv_policy::take_ownership);
}

nb::dict stats_dict(const FeatureStoreObject& self) {
    const FeatureStats stats = self.store->stats();
    nb::dict out;
    out["gathers"] = stats.gathers;
    out["rows"] = stats.rows;
    out["nbytes"] = stats.bytes;
    out["rows_hit"] = stats.rows_hit;
    out["rows_on_gpu"] = stats.rows_on_gpu;
    out["rows_read"] = stats.rows_read;
    out["bytes_read"] = stats.bytes_read;
    out["memory_bytes"] = stats.memory_bytes;
    out["device_bytes"] = stats.device_bytes;
    out["slots"] = stats.slots;
    out["admitted"] = stats.admitted;
    out["passed_by"] = stats.passed_by;
    out["evicted"] = stats.evicted;
    out["preloaded"] = stats.preloaded;
    out["hints"] = stats.hints;
    out["hints_used"] = stats.hints_used;
    out["hints_refused"] = stats.hints_refused;
    out["hints_dropped"] = stats.hints_dropped;
    return out;
}

struct FeatureWriterObject {
    std::optional<FeatureWriter> writer;

    FeatureWriter& open() {
        if (!writer) {
            raise_value("this writer is closed");
        }
        return *writer;
    }
};

void begin_writer(FeatureWriterObject& self, nb::handle path, nb::handle folders, bool sync) {
    FeatureWriterOptions options{.folders = {}, .sync = sync};
    for (const nb::handle folder : nb::iter(folders)) {
        options.folders.push_back(path_bytes(folder, "folders", ""));
    }
    const std::string name = path_bytes(path, "path", "");
    const std::shared_ptr<Engine> engine = features_engine();
    const nb::gil_scoped_release nogil;
    self.writer.emplace(engine, name, options);
}

void bind_feature_store(nb::module_& m) {
    nb::class_<FeatureStoreObject>(m, "FeatureStore", "Private; penstock.FeatureStore is public.")
        .def(
            "__init__",
            [](FeatureStoreObject* self, nb::handle path, nb::handle ram, nb::handle policy,
               nb::handle hot, nb::handle device_memory, std::int32_t device, bool verify,
               nb::handle progress) {
                auto* const made = new (self) FeatureStoreObject;
                try {
                    open_store(*made, path, ram, policy, hot, device_memory, device, verify,
                               progress);
                } catch (...) {
                    made->~FeatureStoreObject();
                    throw;
                }
            },
            nb::arg("path"), nb::arg("ram").none(), nb::arg("policy").none(), nb::arg("hot"),
            nb::arg("device_memory"), nb::arg("device"), nb::arg("verify"),
            nb::arg("progress").none())
        .def("gather", gather_now, nb::arg("rows"), nb::arg("stream").none(),
             nb::sig("def gather(self, rows: list[typing.Any], stream: typing.Any) -> None"))
        .def("gather_async", gather_later, nb::arg("rows"), nb::arg("result").none(),
             nb::arg("stream").none(),
             nb::sig("def gather_async(self, rows: list[typing.Any], result: typing.Any, stream: "
                     "typing.Any) -> Future[typing.Any]"))
        .def("hint", hint_rows, nb::arg("table"), nb::arg("ids"),
             nb::sig("def hint(self, table: int, ids: typing.Any) -> bool"))
        .def("drop_hints", [](FeatureStoreObject& self) { self.store->drop_hints(); })
        .def("file", [](const FeatureStoreObject& self) { return file_dict(self.store->file()); })
        .def("stats", stats_dict)
        .def("describe", [](const FeatureStoreObject& self) { return self.store->describe(); })
        .def("close", [](FeatureStoreObject& self) { self.store->close(); });
    nb::class_<GatherObject, FutureObject>(m, "FeatureGather", nb::is_generic(),
                                           nb::sig("class FeatureGather(Future[T])"),
                                           "A gather under way, or over: a Future, whose result() "
                                           "is the rows. FeatureStore makes them.");
}

void bind_feature_writer(nb::module_& m) {
    nb::class_<FeatureWriterObject>(m, "FeatureWriter",
                                    "Private; penstock.FeatureStore.write() is public.")
        .def(
            "__init__",
            [](FeatureWriterObject* self, nb::handle path, nb::handle folders, bool sync) {
                auto* const made = new (self) FeatureWriterObject;
                try {
                    begin_writer(*made, path, folders, sync);
                } catch (...) {
                    made->~FeatureWriterObject();
                    throw;
                }
            },
            nb::arg("path"), nb::arg("folders"), nb::arg("sync"))
        .def(
            "begin_table",
            [](FeatureWriterObject& self, nb::handle name, nb::handle dtype, nb::handle shape) {
                const NewFeatureTable table{word_of(name, "tables"), word_of(dtype, "dtype"),
                                            counts_of(shape, "shape", "elements")};
                FeatureWriter& writer = self.open();
                const nb::gil_scoped_release nogil;
                writer.begin_table(table);
            },
            nb::arg("name"), nb::arg("dtype"), nb::arg("shape"))
        .def(
            "append",
            [](FeatureWriterObject& self, nb::handle rows) {
                const BorrowedMemory memory = borrow(rows, "rows", false);
                FeatureWriter& writer = self.open();
                const nb::gil_scoped_release nogil;
                writer.append(ConstMemory{memory.data, memory.bytes});
            },
            nb::arg("rows"))
        .def("commit",
             [](FeatureWriterObject& self) {
                 FeatureWriter& writer = self.open();
                 const nb::gil_scoped_release nogil;
                 writer.commit();
             })
        .def("close", [](FeatureWriterObject& self) {
            std::optional<FeatureWriter> dropped = std::exchange(self.writer, std::nullopt);
            const nb::gil_scoped_release nogil;
            dropped.reset();
        });
}

nb::dict inspect_file(nb::handle path) {
    const std::string name = path_bytes(path, "path", "");
    const std::shared_ptr<Engine> engine = features_engine();
    FeatureFile file;
    {
        const nb::gil_scoped_release nogil;
        file = inspect_features(engine, name);
    }
    return file_dict(file);
}

nb::list verify_file(nb::handle path, nb::handle progress) {
    const std::string name = path_bytes(path, "path", "");
    const std::shared_ptr<Engine> engine = features_engine();
    std::vector<FeatureProblem> problems;
    run_with_progress(progress, [&](const Progress& report) {
        problems = verify_features(engine, name, report);
    });
    nb::list out;
    for (const FeatureProblem& problem : problems) {
        out.append(nb::make_tuple(nb::str(problem.table.c_str()), path_object(problem.path),
                                  problem.offset, problem.bytes, problem.row,
                                  path_object(problem.message)));
    }
    return out;
}

}  // namespace

void bind_features(nb::module_& m) {
    bind_feature_store(m);
    bind_feature_writer(m);
    m.def("inspect_features", inspect_file, nb::arg("path").none(),
          nb::sig("def inspect_features(path: typing.Any) -> dict[str, typing.Any]"),
          "Private: what a feature file or .npy has.");
    m.def("verify_features", verify_file, nb::arg("path").none(), nb::arg("progress").none(),
          nb::sig("def verify_features(path: typing.Any, progress: "
                  "collections.abc.Callable[[int, int], object] | None) -> "
                  "list[tuple[str, str, int, int, int, str]]"),
          "Private; penstock.features.verify() is public.");
}

}  // namespace penstock::python
