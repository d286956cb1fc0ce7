// SPDX-License-Identifier: Apache-2.0
// GpuWeightStream for penstock/weights. Private: what users see is penstock.stream().
#include "arguments.hpp"
#include "bind.hpp"
#include "engine_object.hpp"
#include "names.hpp"
#include "weight_arguments.hpp"

#include <penstock/weights.hpp>

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

struct GpuWeightsObject {
    GpuWeightsObject() = default;
    GpuWeightsObject(const GpuWeightsObject&) = delete;
    GpuWeightsObject& operator=(const GpuWeightsObject&) = delete;
    ~GpuWeightsObject() {
        const nb::gil_scoped_release nogil;
        stream.reset();
    }

    std::shared_ptr<Engine> engine;
    TensorTable table;
    std::vector<std::vector<const TensorEntry*>> entries;  // of each unit
    std::unique_ptr<GpuWeightStream> stream;
    const GpuWeightView* view = nullptr;  // of the last acquire()
};

// Keeps memory of the GPU allocated for as long as a tensor refers to it.
struct GpuMemoryOwner {
    std::shared_ptr<void> owner;
};

void open_gpu_weights(GpuWeightsObject& self, nb::handle paths, nb::handle units, int device,
                      nb::handle device_memory, nb::handle host_memory, nb::handle slots,
                      nb::handle joined) {
    const std::vector<std::string> folders = folders_of(paths);
    std::vector<WeightUnit> wanted = units_of(units);
    const std::vector<JoinedTensor> to_join = joined_of(joined);
    GpuWeightStreamOptions options;
    options.device = device;
    options.device_memory_bytes = count_of(device_memory, "device_memory", "bytes");
    options.host_memory_bytes = count_of(host_memory, "memory", "bytes");
    options.slots = static_cast<std::uint32_t>(count_of(slots, "slots", "slots", 1024));
    self.engine = opened(default_engine());
    const nb::gil_scoped_release nogil;
    WeightFolders model = joined_folders(self.engine, folders, to_join);
    self.table = std::move(model.table);
    options.copies = std::move(model.copies);
    std::unordered_map<std::string_view, const TensorEntry*> known;
    for (const TensorEntry& entry : self.table.tensors) {
        known.emplace(entry.name, &entry);
    }
    self.stream = std::make_unique<GpuWeightStream>(self.engine, self.table, wanted, options);
    for (const WeightUnit& unit : wanted) {
        std::vector<const TensorEntry*>& entries = self.entries.emplace_back();
        for (const std::string& name : unit.tensors) {
            entries.push_back(known.at(name));
        }
    }
}

GpuWeightStream& gpu_weights_of(GpuWeightsObject& self) {
    if (!self.stream) {
        raise_value("these weights are closed; call penstock.stream() again");
    }
    return *self.stream;
}

std::uint32_t acquire_on_gpu(GpuWeightsObject& self, std::size_t unit, std::uintptr_t stream) {
    check_interpreter_goes_on();
    GpuWeightStream& weights = gpu_weights_of(self);
    wait_in_slices(-1, [&](std::chrono::nanoseconds slice) {
        self.view = weights.acquire_for(unit, slice, {.handle = stream});
        return self.view != nullptr;
    });
    return self.view->slot;
}

// (address, bytes, element type, shape, owner) of each tensor of the unit that was acquired last.
nb::list tensors_on_gpu(GpuWeightsObject& self, std::size_t unit) {
    nb::list out;
    for (std::size_t i = 0; i < self.view->tensors.size(); ++i) {
        const TensorEntry& entry = *self.entries.at(unit)[i];
        nb::list shape;
        for (const std::uint64_t one : entry.shape) {
            shape.append(one);
        }
        out.append(nb::make_tuple(reinterpret_cast<std::uintptr_t>(self.view->tensors[i].data),
                                  self.view->tensors[i].bytes, nb::str(entry.dtype.c_str()),
                                  nb::tuple(shape),
                                  nb::cast(GpuMemoryOwner{self.view->owners[i]})));
    }
    return out;
}

nb::dict gpu_plan_of(const GpuWeightPlan& plan) {
    nb::dict out;
    nb::list units;
    for (const GpuWeightPlan::Unit& unit : plan.units) {
        units.append(nb::make_tuple(nb::str(unit.name.c_str()), unit.bytes,
                                    unit.copied_bytes + unit.read_bytes));
    }
    out["units"] = units;
    out["used_bytes"] = plan.host_bytes;
    out["resident_bytes"] = plan.resident_bytes;
    out["slots"] = plan.slots;
    out["slot_bytes"] = plan.slot_bytes;
    out["device_bytes"] = plan.device_bytes();
    out["host_bytes"] = plan.host_bytes;
    out["copied_bytes"] = plan.copied_bytes;
    out["read_bytes"] = plan.read_bytes;
    return out;
}

nb::dict gpu_stats_of(const GpuWeightStreamStats& stats) {
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
    out["folders"] = folder_stats_of(stats.folders);
    return out;
}

}  // namespace

void bind_gpu_weights(nb::module_& m) {
    nb::class_<GpuMemoryOwner>(m, "GpuMemoryOwner", "Private.");
    nb::class_<GpuWeightsObject>(m, "GpuWeightStream", "Private; penstock.stream() is public.")
        .def(
            "__init__",
            [](GpuWeightsObject* self, nb::handle paths, nb::handle units, int device,
               nb::handle device_memory, nb::handle host_memory, nb::handle slots,
               nb::handle joined) {
                auto* const made = new (self) GpuWeightsObject;
                try {
                    open_gpu_weights(*made, paths, units, device, device_memory, host_memory, slots,
                                     joined);
                } catch (...) {
                    made->~GpuWeightsObject();
                    throw;
                }
            },
            nb::arg("paths"), nb::arg("units"), nb::arg("device"), nb::arg("device_memory"),
            nb::arg("host_memory"), nb::arg("slots"), nb::arg("joined"))
        .def("acquire", acquire_on_gpu, nb::arg("unit"), nb::arg("stream"))
        .def("tensors", tensors_on_gpu, nb::arg("unit"),
             nb::sig("def tensors(self, unit: int) -> list[tuple[int, int, str, tuple[int, ...], "
                     "typing.Any]]"))
        .def(
            "release",
            [](GpuWeightsObject& self, std::size_t unit, std::uintptr_t stream) {
                gpu_weights_of(self).release(unit, {.handle = stream});
            },
            nb::arg("unit"), nb::arg("stream"))
        .def(
            "plan", [](GpuWeightsObject& self) { return gpu_plan_of(gpu_weights_of(self).plan()); },
            nb::sig("def plan(self) -> dict[str, typing.Any]"))
        .def(
            "stats",
            [](GpuWeightsObject& self) { return gpu_stats_of(gpu_weights_of(self).stats()); },
            nb::sig("def stats(self) -> dict[str, typing.Any]"))
        .def("close", [](GpuWeightsObject& self) {
            const nb::gil_scoped_release nogil;
            self.stream.reset();
        });
}

}  // namespace penstock::python
