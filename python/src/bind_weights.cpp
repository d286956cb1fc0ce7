// SPDX-License-Identifier: Apache-2.0
// WeightStream and ExpertStream for penstock/weights. Private: what users see is penstock.stream().
#include "arguments.hpp"
#include "bind.hpp"
#include "buffer_object.hpp"
#include "engine_object.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "state/model_folder.hpp"
#include "weight_arguments.hpp"

#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

struct WeightsObject {
    WeightsObject() = default;
    WeightsObject(const WeightsObject&) = delete;
    WeightsObject& operator=(const WeightsObject&) = delete;
    ~WeightsObject() {
        const nb::gil_scoped_release nogil;
        stream.reset();
    }

    std::shared_ptr<Engine> engine;
    TensorTable table;
    std::vector<std::vector<std::size_t>> entries;  // of each unit, in the table
    std::optional<std::int32_t> gpu;
    std::unique_ptr<WeightStream> stream;
    const WeightView* view = nullptr;  // of the last acquire()
};

void open_weights(WeightsObject& self, nb::handle paths, nb::handle units, nb::handle memory,
                  nb::handle slots, nb::handle reserve, nb::handle progress, nb::handle joined,
                  nb::handle gpu, nb::handle host_memory) {
    const std::vector<std::string> folders = folders_of(paths);
    std::vector<WeightUnit> wanted = units_of(units);
    const std::vector<JoinedTensor> to_join = joined_of(joined);
    WeightStreamOptions options;
    options.memory_bytes = count_of(memory, "memory", "bytes");
    options.slots = static_cast<std::uint32_t>(count_of(slots, "slots", "slots", 1024));
    options.gpu = self.gpu = gpu_of(gpu);
    options.host_memory_bytes = count_of(host_memory, "memory", "bytes");
    options.spare = spare_of(reserve, options.gpu);
    self.engine = opened(default_engine());
    run_with_progress(progress, [&](const Progress& report) {
        WeightFolders model = joined_folders(self.engine, folders, to_join);
        self.table = std::move(model.table);
        options.copies = std::move(model.copies);
        std::unordered_map<std::string_view, std::size_t> numbers;
        for (std::size_t i = 0; i < self.table.tensors.size(); ++i) {
            numbers.emplace(self.table.tensors[i].name, i);
        }
        options.progress = report;
        self.stream = std::make_unique<WeightStream>(self.engine, self.table, wanted, options);
        for (const WeightUnit& unit : wanted) {
            std::vector<std::size_t>& entries = self.entries.emplace_back();
            for (const std::string& name : unit.tensors) {
                entries.push_back(numbers.at(name));
            }
        }
    });
}

WeightStream& stream_of(WeightsObject& self) {
    if (!self.stream) {
        raise_value("these weights are closed; call penstock.stream() again");
    }
    return *self.stream;
}

// (layout, slot) of a WeightView: where they are the same, so are the addresses.
nb::tuple acquire(WeightsObject& self, std::size_t unit, std::uintptr_t handle) {
    check_interpreter_goes_on();
    WeightStream& stream = stream_of(self);
    wait_in_slices(-1, [&](std::chrono::nanoseconds slice) {
        self.view = stream.acquire_for(unit, slice, {.handle = handle});
        return self.view != nullptr;
    });
    return nb::make_tuple(self.view->layout, self.view->slot);
}

// The tensors of the unit that was acquired last.
nb::list tensors(WeightsObject& self, std::size_t unit) {
    nb::list out;
    for (std::size_t i = 0; i < self.view->tensors.size(); ++i) {
        const TensorEntry& entry = self.table.tensors[self.entries.at(unit)[i]];
        out.append(tensor_in(self.view->owners[i], self.view->tensors[i], entry, entry.shape));
    }
    return out;
}

nb::dict plan_of(const WeightPlan& plan) {
    nb::dict out;
    nb::list units;
    for (const WeightPlan::Unit& unit : plan.units) {
        units.append(nb::make_tuple(nb::str(unit.name.c_str()), unit.bytes,
                                    unit.copied_bytes + unit.read_bytes));
    }
    out["units"] = units;
    out["memory_bytes"] = plan.memory_bytes;
    out["used_bytes"] = plan.used_bytes();
    out["resident_bytes"] = plan.resident_bytes;
    out["slots"] = plan.slots;
    out["slot_bytes"] = plan.slot_bytes;
    out["host_bytes"] = plan.host_bytes;
    out["copied_bytes"] = plan.copied_bytes;
    out["read_bytes"] = plan.read_bytes;
    return out;
}

nb::dict stats_of(const WeightStreamStats& stats) {
    nb::dict out;
    nb::list stall;
    for (const std::int64_t one : stats.stall) {
        stall.append(static_cast<double>(one) / 1e9);
    }
    out["passes"] = stats.passes;
    out["acquired"] = stats.acquired;
    out["ready"] = stats.ready;
    out["on_demand"] = stats.on_demand;
    out["bytes_read"] = stats.bytes_read;
    out["bytes_copied"] = stats.bytes_copied;
    out["stall_s"] = stall;
    const std::int64_t waited = std::accumulate(stats.stall.begin(), stats.stall.end(), 0LL);
    const double running_s = static_cast<double>(stats.running) / 1e9;
    out["running_s"] = running_s;
    out["bytes_per_second"] = stats.bytes_per_second;
    out["share_of_bound"] =
        share_of_bound(running_s, static_cast<double>(waited) / 1e9,
                       static_cast<double>(stats.needed_bytes), stats.bytes_per_second);
    out["folders"] = folder_stats_of(stats.folders);
    return out;
}

// (name, element type, shape, offset, bytes, path) of each tensor.
nb::list tensors_in(nb::handle paths) {
    const std::vector<std::string> folders = folders_of(paths);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    WeightFolders model;
    {
        const nb::gil_scoped_release nogil;
        model = inspect_folders(engine, folders);
    }
    nb::list out;
    for (const TensorEntry& entry : model.table.tensors) {
        nb::list shape;
        for (const std::uint64_t dimension : entry.shape) {
            shape.append(dimension);
        }
        const TensorStretch& place = entry.stretches.at(0);
        out.append(nb::make_tuple(path_object(entry.name), nb::str(entry.dtype.c_str()), shape,
                                  place.offset, entry.bytes,
                                  path_object(model.table.files.at(place.file))));
    }
    return out;
}

// From (units, bytes outside of them).
UnitsToFit to_fit_of(nb::handle pair) {
    return {units_of(nb::object(pair[0])), count_of(nb::object(pair[1]), "outside", "bytes")};
}

// The least memory of the units that fit, which `divide` has returned last. It takes the numbers of
// units and returns all, or None.
std::uint64_t fit_units(nb::handle paths, nb::handle units, nb::handle memory, nb::handle slots,
                        nb::handle joined, nb::handle gpu, nb::handle divide) {
    const std::vector<std::string> folders = folders_of(paths);
    const std::vector<JoinedTensor> to_join = joined_of(joined);
    WeightStreamOptions options;
    options.memory_bytes = count_of(memory, "memory", "bytes");
    options.slots = static_cast<std::uint32_t>(count_of(slots, "slots", "slots", 1024));
    options.gpu = gpu_of(gpu);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    WeightFolders model;
    {
        const nb::gil_scoped_release nogil;
        model = joined_folders(engine, folders, to_join);
    }
    const auto ask = [&](std::span<const std::size_t> numbers) -> std::optional<UnitsToFit> {
        nb::list list;
        for (const std::size_t number : numbers) {
            list.append(number);
        }
        const nb::object found = divide(list);
        return found.is_none() ? std::nullopt : std::optional(to_fit_of(found));
    };
    return fit_weight_units(model.table, to_fit_of(units), options, ask).least_bytes;
}

struct ExpertsObject {
    ExpertsObject() = default;
    ExpertsObject(const ExpertsObject&) = delete;
    ExpertsObject& operator=(const ExpertsObject&) = delete;
    ~ExpertsObject() {
        const nb::gil_scoped_release nogil;
        stream.reset();
    }

    std::unordered_map<std::string, const TensorEntry*> entries;
    TensorTable table;
    std::vector<ExpertLayer> layers;
    std::optional<std::int32_t> gpu;
    std::unique_ptr<ExpertStream> stream;
    std::vector<ExpertView> views;  // of the last acquire()
    std::size_t layer = 0;
    std::vector<std::size_t> numbers;
};

// From (name, [[(tensor, offset, bytes)]]).
std::vector<ExpertLayer> layers_of(nb::handle list) {
    std::vector<ExpertLayer> out;
    for (const nb::handle one : nb::iter(list)) {
        ExpertLayer& layer = out.emplace_back();
        layer.name = word_of(nb::object(one[0]), "experts");
        for (const nb::handle parts : nb::iter(nb::object(one[1]))) {
            layer.experts.push_back(tensor_parts_of(parts));
        }
    }
    return out;
}

void open_experts(ExpertsObject& self, nb::handle paths, nb::handle layers, nb::handle memory,
                  nb::handle reserve, nb::handle joined, bool read_likely, nb::handle gpu) {
    const std::vector<std::string> folders = folders_of(paths);
    const std::vector<JoinedTensor> to_join = joined_of(joined);
    ExpertStreamOptions options;
    options.read_likely = read_likely;
    options.memory_bytes = count_of(memory, "memory", "bytes");
    options.gpu = self.gpu = gpu_of(gpu);
    options.spare = spare_of(reserve, options.gpu);
    self.layers = layers_of(layers);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    const nb::gil_scoped_release nogil;
    WeightFolders model = joined_folders(engine, folders, to_join);
    self.table = std::move(model.table);
    options.copies = std::move(model.copies);
    for (const TensorEntry& entry : self.table.tensors) {
        self.entries.emplace(entry.name, &entry);
    }
    self.stream = std::make_unique<ExpertStream>(engine, self.table, self.layers, options);
}

ExpertStream& stream_of(ExpertsObject& self) {
    if (!self.stream) {
        raise_value("these experts are closed; call penstock.stream() again");
    }
    return *self.stream;
}

// The slots of the first of `numbers`, which are held.
nb::list acquire_experts(ExpertsObject& self, std::size_t layer, nb::handle numbers) {
    check_interpreter_goes_on();
    ExpertStream& stream = stream_of(self);
    self.layer = layer;
    self.numbers.clear();
    for (const nb::handle number : nb::iter(numbers)) {
        self.numbers.push_back(count_of(number, "experts", "experts"));
    }
    wait_in_slices(-1, [&](std::chrono::nanoseconds slice) {
        auto views = stream.acquire_for(layer, self.numbers, slice);
        self.views = views ? std::move(*views) : std::vector<ExpertView>();
        return views.has_value();
    });
    nb::list out;
    for (const ExpertView& view : self.views) {
        out.append(view.slot);
    }
    return out;
}

std::uint64_t most_memory(nb::handle paths, nb::handle units, nb::handle joined, nb::handle gpu) {
    WeightStreamOptions options;
    options.gpu = gpu_of(gpu);
    const std::vector<std::string> folders = folders_of(paths);
    const std::vector<JoinedTensor> to_join = joined_of(joined);
    const std::vector<WeightUnit> wanted = units_of(units);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    const nb::gil_scoped_release nogil;
    return most_weight_memory(joined_folders(engine, folders, to_join).table, wanted, options);
}

// The parts of the expert that was acquired at this place, flat.
nb::list expert_parts(ExpertsObject& self, std::size_t place) {
    nb::list out;
    const ExpertView& view = self.views.at(place);
    const std::vector<TensorPart>& parts = self.layers[self.layer].experts[self.numbers[place]];
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const TensorEntry& entry = *self.entries.at(parts[i].tensor);
        const auto type = element_type_named(entry.dtype);
        const std::uint64_t elements = type ? view.parts[i].bytes * 8 / bits_of(*type) : 0;
        out.append(tensor_in(view.owner, view.parts[i], entry, {&elements, 1}));
    }
    return out;
}

nb::dict expert_stats_of(const ExpertStreamStats& stats) {
    nb::dict out;
    out["hits"] = stats.hits;
    out["misses"] = stats.misses;
    out["bytes_read"] = stats.bytes_read;
    out["likely_reads"] = stats.likely_reads;
    out["likely_hits"] = stats.likely_hits;
    out["slots"] = stats.slots;
    out["slot_bytes"] = stats.slot_bytes;
    out["stall_s"] = static_cast<double>(stats.stall) / 1e9;
    out["folders"] = folder_stats_of(stats.folders);
    return out;
}

std::uint64_t least_experts(nb::handle paths, nb::handle layers, nb::handle joined,
                            nb::handle gpu) {
    ExpertStreamOptions options;
    options.gpu = gpu_of(gpu);
    const std::vector<std::string> folders = folders_of(paths);
    const std::vector<ExpertLayer> wanted = layers_of(layers);
    const std::vector<JoinedTensor> to_join = joined_of(joined);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    const nb::gil_scoped_release nogil;
    return least_expert_memory(joined_folders(engine, folders, to_join).table, wanted, options);
}

void bind_experts(nb::module_& m) {
    nb::class_<ExpertsObject>(m, "ExpertStream", "Private; penstock.stream() is public.")
        .def(
            "__init__",
            [](ExpertsObject* self, nb::handle paths, nb::handle layers, nb::handle memory,
               nb::handle reserve, nb::handle joined, bool read_likely, nb::handle gpu) {
                auto* const made = new (self) ExpertsObject;
                try {
                    open_experts(*made, paths, layers, memory, reserve, joined, read_likely, gpu);
                } catch (...) {
                    made->~ExpertsObject();
                    throw;
                }
            },
            nb::arg("paths"), nb::arg("layers"), nb::arg("memory"), nb::arg("reserve").none(),
            nb::arg("joined"), nb::arg("read_likely"), nb::arg("gpu").none())
        .def("acquire", acquire_experts, nb::arg("layer"), nb::arg("experts"),
             nb::sig("def acquire(self, layer: int, experts: typing.Sequence[int]) -> list[int]"))
        .def("parts", expert_parts, nb::arg("place"),
             nb::sig("def parts(self, place: int) -> list[typing.Any]"))
        .def(
            "release",
            [](ExpertsObject& self, std::uintptr_t stream) {
                stream_of(self).release({.handle = stream});
            },
            nb::arg("stream"))
        .def(
            "set_memory",
            [](ExpertsObject& self, nb::handle memory, nb::handle reserve) {
                stream_of(self).set_memory(count_of(memory, "memory", "bytes"),
                                           spare_of(reserve, self.gpu));
            },
            nb::arg("memory"), nb::arg("reserve").none())
        .def(
            "stats", [](ExpertsObject& self) { return expert_stats_of(stream_of(self).stats()); },
            nb::sig("def stats(self) -> dict[str, typing.Any]"))
        .def("close", [](ExpertsObject& self) {
            self.views.clear();
            const nb::gil_scoped_release nogil;
            self.stream.reset();
        });
    m.def(
        "share_weight_memory",
        [](nb::handle memory, nb::handle least, nb::handle most, nb::handle experts) {
            const WeightShares out = share_weight_memory(
                count_of(memory, "memory", "bytes"), count_of(least, "least", "bytes"),
                count_of(most, "most", "bytes"), count_of(experts, "experts", "bytes"));
            return nb::make_tuple(out.units_bytes, out.experts_bytes);
        },
        nb::arg("memory"), nb::arg("least"), nb::arg("most"), nb::arg("experts"),
        nb::sig("def share_weight_memory(memory: int, least: int, most: int, experts: int) -> "
                "tuple[int, int]"),
        "Private.");
    m.def("least_expert_memory", least_experts, nb::arg("paths"), nb::arg("layers"),
          nb::arg("joined"), nb::arg("gpu").none(), "Bytes; private.");
}

}  // namespace

void bind_weights(nb::module_& m) {
    bind_gpu_owner(m);
    bind_experts(m);
    nb::class_<WeightsObject>(m, "WeightStream", "Private; penstock.stream() is public.")
        .def(
            "__init__",
            [](WeightsObject* self, nb::handle paths, nb::handle units, nb::handle memory,
               nb::handle slots, nb::handle reserve, nb::handle progress, nb::handle joined,
               nb::handle gpu, nb::handle host_memory) {
                auto* const made = new (self) WeightsObject;
                try {
                    open_weights(*made, paths, units, memory, slots, reserve, progress, joined, gpu,
                                 host_memory);
                } catch (...) {
                    made->~WeightsObject();
                    throw;
                }
            },
            nb::arg("paths"), nb::arg("units"), nb::arg("memory"), nb::arg("slots"),
            nb::arg("reserve").none(), nb::arg("progress").none(), nb::arg("joined"),
            nb::arg("gpu").none(), nb::arg("host_memory"))
        .def("acquire", acquire, nb::arg("unit"), nb::arg("stream"),
             nb::sig("def acquire(self, unit: int, stream: int) -> tuple[int, int]"))
        .def("tensors", tensors, nb::arg("unit"),
             nb::sig("def tensors(self, unit: int) -> list[typing.Any]"))
        .def(
            "release",
            [](WeightsObject& self, std::size_t unit, std::uintptr_t stream) {
                stream_of(self).release(unit, {.handle = stream});
            },
            nb::arg("unit"), nb::arg("stream"))
        .def(
            "set_memory",
            [](WeightsObject& self, nb::handle memory, nb::handle reserve) {
                stream_of(self).set_memory(count_of(memory, "memory", "bytes"),
                                           spare_of(reserve, self.gpu));
            },
            nb::arg("memory"), nb::arg("reserve").none())
        .def(
            "plan", [](WeightsObject& self) { return plan_of(stream_of(self).plan()); },
            nb::sig("def plan(self) -> dict[str, typing.Any]"))
        .def(
            "stats", [](WeightsObject& self) { return stats_of(stream_of(self).stats()); },
            nb::sig("def stats(self) -> dict[str, typing.Any]"))
        .def("close", [](WeightsObject& self) {
            const nb::gil_scoped_release nogil;
            self.stream.reset();
        });
    m.def("fit_weight_units", fit_units, nb::arg("paths"), nb::arg("units"), nb::arg("memory"),
          nb::arg("slots"), nb::arg("joined"), nb::arg("gpu").none(), nb::arg("divide"),
          nb::sig("def fit_weight_units(paths: typing.Any, units: typing.Any, memory: int, slots: "
                  "int, joined: typing.Any, gpu: int | None, divide: typing.Any) -> int"),
          "Bytes; private.");
    m.def(
        "small_weight_bytes",
        [](nb::handle bytes) { return small_weight_bytes(count_of(bytes, "bytes", "bytes")); },
        nb::arg("bytes"), nb::sig("def small_weight_bytes(bytes: int) -> int"), "Private.");
    m.def("most_weight_memory", most_memory, nb::arg("paths"), nb::arg("units"), nb::arg("joined"),
          nb::arg("gpu").none(), "Bytes; private.");
    m.def(
        "hub_cache_folder", [] { return path_object(hub_cache_folder()); }, "Private.",
        nb::sig("def hub_cache_folder() -> str"));
    m.def(
        "find_hub_model",
        [](nb::handle name) {
            const std::string text = path_bytes(name, "folder", "");
            const std::shared_ptr<Engine> engine = opened(default_engine());
            std::string found;
            {
                const nb::gil_scoped_release nogil;
                found = find_hub_model(*engine, text);
            }
            return path_object(found);
        },
        nb::arg("name"), "Private.", nb::sig("def find_hub_model(name: str) -> str"));
    m.def(
        "model_file",
        [](nb::handle folder) {
            const std::string path = path_bytes(folder, "folder", "");
            return path_object(state::the_model_file(FileSystem::any(), {&path, 1}));
        },
        nb::arg("folder"), "Private.", nb::sig("def model_file(folder: typing.Any) -> str"));
    m.def(
        "tensors_in",
        [](nb::handle folder) {
            const std::string path = path_bytes(folder, "folder", "");
            const auto found = state::tensors_in(FileSystem::any(), path);
            return found ? path_object(*found) : nb::none();
        },
        nb::arg("folder"), "Private.", nb::sig("def tensors_in(folder: typing.Any) -> str | None"));
    m.def(
        "model_folder",
        [](nb::handle folder, bool always) {
            const std::string path = path_bytes(folder, "folder", "");
            return path_object(state::model_folder(FileSystem::any(), path, always));
        },
        nb::arg("folder"), nb::arg("always"), "Private.",
        nb::sig("def model_folder(folder: typing.Any, always: bool) -> str"));
    m.def("weight_tensors", tensors_in, nb::arg("paths"),
          nb::sig("def weight_tensors(paths: typing.Any) -> list[typing.Any]"), "Private.");
}

}  // namespace penstock::python
