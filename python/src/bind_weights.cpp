// SPDX-License-Identifier: Apache-2.0
// WeightStream for penstock/weights. Private: what users see is penstock.stream().
#include "arguments.hpp"
#include "bind.hpp"
#include "buffer_object.hpp"
#include "engine_object.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "without_gil.hpp"

#include <penstock/tensor_table.hpp>
#include <penstock/weight_folders.hpp>
#include <penstock/weight_stream.hpp>

#include <memory>
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
        const WithoutGil nogil;
        stream.reset();
    }

    std::shared_ptr<Engine> engine;
    TensorTable table;
    std::vector<std::vector<std::size_t>> entries;  // of each unit, in the table
    std::unique_ptr<WeightStream> stream;
    const WeightView* view = nullptr;  // of the last acquire()
};

std::vector<WeightUnit> units_of(nb::handle list) {
    std::vector<WeightUnit> out;
    for (const nb::handle pair : nb::iter(list)) {
        WeightUnit& unit = out.emplace_back();
        unit.name = word_of(nb::object(pair[0]), "units");
        for (const nb::handle name : nb::iter(nb::object(pair[1]))) {
            unit.tensors.push_back(word_of(name, "units"));
        }
    }
    return out;
}

std::vector<std::string> folders_of(nb::handle paths) {
    std::vector<std::string> out;
    for (const nb::handle path : nb::iter(paths)) {
        out.push_back(path_bytes(path, "folder", ""));
    }
    return out;
}

void open_weights(WeightsObject& self, nb::handle paths, nb::handle units, nb::handle memory,
                  nb::handle slots, nb::handle progress) {
    const std::vector<std::string> folders = folders_of(paths);
    std::vector<WeightUnit> wanted = units_of(units);
    WeightStreamOptions options;
    options.memory_bytes = count_of(memory, "memory", "bytes");
    options.slots = static_cast<std::uint32_t>(count_of(slots, "slots", "slots", 1024));
    self.engine = opened(default_engine());
    run_with_progress(progress, [&](const Progress& report) {
        WeightFolders model = inspect_folders(self.engine, folders);
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

std::int64_t acquire(WeightsObject& self, std::size_t unit) {
    check_interpreter_goes_on();
    WeightStream& stream = stream_of(self);
    wait_in_slices(-1, [&](std::chrono::nanoseconds slice) {
        self.view = stream.acquire_for(unit, slice);
        return self.view != nullptr;
    });
    return self.view->slot == WeightStream::kNoSlot ? -1 : std::int64_t{self.view->slot};
}

// The tensors of the unit that was acquired last.
nb::list tensors(WeightsObject& self, std::size_t unit) {
    nb::list out;
    for (std::size_t i = 0; i < self.view->tensors.size(); ++i) {
        const TensorEntry& entry = self.table.tensors[self.entries.at(unit)[i]];
        BufferObject buffer;
        buffer.owner = self.view->owners[i];
        buffer.data = const_cast<std::byte*>(self.view->tensors[i].data());
        buffer.bytes = self.view->tensors[i].size();
        buffer.type = tensor::find_row([&](const auto& row) { return row.name == entry.dtype; });
        if (buffer.type == nullptr || buffer.type->torch[0] == '\0') {
            raise_type("tensor '" + entry.name + "' has the element type " + entry.dtype +
                       ", which torch does not have");
        }
        Py_ssize_t stride = buffer.type->bits / 8;
        buffer.strides_bytes.resize(entry.shape.size());
        for (std::size_t d = entry.shape.size(); d-- > 0;) {
            buffer.strides_bytes[d] = stride;
            stride *= static_cast<Py_ssize_t>(entry.shape[d]);
        }
        buffer.shape.assign(entry.shape.begin(), entry.shape.end());
        buffer.pinned_reason = "it is memory of streamed weights";
        out.append(nb::cast(std::move(buffer)));
    }
    return out;
}

nb::dict plan_of(const WeightPlan& plan) {
    nb::dict out;
    nb::list units;
    for (const WeightPlan::Unit& unit : plan.units) {
        units.append(nb::make_tuple(nb::str(unit.name.c_str()), unit.bytes, unit.read_bytes));
    }
    out["units"] = units;
    out["memory_bytes"] = plan.memory_bytes;
    out["used_bytes"] = plan.used_bytes();
    out["resident_bytes"] = plan.resident_bytes;
    out["slots"] = plan.slots;
    out["slot_bytes"] = plan.slot_bytes;
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
    out["stall_s"] = stall;
    nb::list folders;
    for (const WeightFolderStats& folder : stats.folders) {
        folders.append(nb::make_tuple(folder.bytes_per_second, folder.bytes_read));
    }
    out["folders"] = folders;
    return out;
}

// (name, element type, shape, offset, bytes, path) of each tensor.
nb::list tensors_in(nb::handle paths) {
    const std::vector<std::string> folders = folders_of(paths);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    WeightFolders model;
    {
        const WithoutGil nogil;
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

std::uint64_t least_memory(nb::handle paths, nb::handle units, nb::handle slots) {
    const std::vector<std::string> folders = folders_of(paths);
    const std::vector<WeightUnit> wanted = units_of(units);
    const auto count = static_cast<std::uint32_t>(count_of(slots, "slots", "slots", 1024));
    const std::shared_ptr<Engine> engine = opened(default_engine());
    const WithoutGil nogil;
    return least_weight_memory(inspect_folders(engine, folders).table, wanted, count);
}

}  // namespace

void bind_weights(nb::module_& m) {
    nb::class_<WeightsObject>(m, "WeightStream", "Private; penstock.stream() is public.")
        .def(
            "__init__",
            [](WeightsObject* self, nb::handle paths, nb::handle units, nb::handle memory,
               nb::handle slots, nb::handle progress) {
                auto* const made = new (self) WeightsObject;
                try {
                    open_weights(*made, paths, units, memory, slots, progress);
                } catch (...) {
                    made->~WeightsObject();
                    throw;
                }
            },
            nb::arg("paths"), nb::arg("units"), nb::arg("memory"), nb::arg("slots"),
            nb::arg("progress").none())
        .def("acquire", acquire, nb::arg("unit"))
        .def("tensors", tensors, nb::arg("unit"),
             nb::sig("def tensors(self, unit: int) -> list[Buffer]"))
        .def(
            "release", [](WeightsObject& self, std::size_t unit) { stream_of(self).release(unit); },
            nb::arg("unit"))
        .def(
            "set_memory",
            [](WeightsObject& self, nb::handle memory) {
                stream_of(self).set_memory(count_of(memory, "memory", "bytes"));
            },
            nb::arg("memory"))
        .def(
            "plan", [](WeightsObject& self) { return plan_of(stream_of(self).plan()); },
            nb::sig("def plan(self) -> dict[str, typing.Any]"))
        .def(
            "stats", [](WeightsObject& self) { return stats_of(stream_of(self).stats()); },
            nb::sig("def stats(self) -> dict[str, typing.Any]"))
        .def("close", [](WeightsObject& self) {
            const WithoutGil nogil;
            self.stream.reset();
        });
    m.def("least_weight_memory", least_memory, nb::arg("paths"), nb::arg("units"), nb::arg("slots"),
          "Bytes; private.");
    m.def("weight_tensors", tensors_in, nb::arg("paths"),
          nb::sig("def weight_tensors(paths: typing.Any) -> list[typing.Any]"), "Private.");
}

}  // namespace penstock::python
