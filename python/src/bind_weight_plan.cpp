// SPDX-License-Identifier: Apache-2.0
// What python/penstock/weights/_plan.py stands on: the plan of a model that nobody has made yet.
#include "arguments.hpp"
#include "bind.hpp"
#include "engine_object.hpp"
#include "file_object.hpp"
#include "names.hpp"

#include <penstock/weights.hpp>

#include <string>
#include <vector>

namespace penstock::python {

namespace {

nb::object experts_of(const ExpertForecast& experts) {
    if (experts.experts == 0) {
        return nb::none();
    }
    return nb::make_tuple(experts.layers, experts.experts, experts.chosen, experts.bytes,
                          experts.memory_bytes, experts.slots, experts.slot_bytes, experts.hits,
                          experts.read_bytes);
}

// `rate`: bytes a second, 0 for none, and below 0 for a measured one. `compute_rate`: the same, of
// the weights that a token is computed with; `compute_seconds` where it is 0.
nb::dict forecast(nb::handle folders, nb::handle memory, nb::handle slots, double rate,
                  double compute_seconds, double compute_rate, nb::handle experts) {
    std::vector<std::string> paths;
    for (const nb::handle folder : nb::iter(folders)) {
        paths.push_back(path_bytes(folder, "folder", ""));
    }
    const std::uint64_t bytes = size_of(memory, "memory", "bytes");
    const auto count = static_cast<std::uint32_t>(count_of(slots, "slots", "slots", 1024));
    std::uint64_t of_token = experts.is_none() ? 0 : count_of(experts, "experts", "experts");
    const std::shared_ptr<Engine> engine = opened(default_engine());
    WeightForecast found;
    double seconds = 0;
    {
        const nb::gil_scoped_release nogil;
        const WeightFolders model = inspect_folders(engine, paths);
        if (of_token == 0 && !find_expert_layers(model.table).empty()) {
            of_token = find_experts_per_token(*engine, paths);
        }
        found = forecast_weights(model.table, bytes, count, of_token);
        rate = rate < 0 ? measure_weight_rate(*engine, model) : rate;
        compute_rate = compute_rate < 0 ? measure_memory_rate() : compute_rate;
        if (compute_rate > 0) {
            compute_seconds = static_cast<double>(found.weights_of_token()) / compute_rate;
        }
        seconds = rate > 0 ? pass_seconds(found, rate, compute_seconds) : 0;
    }
    nb::list units;
    for (const WeightPlan::Unit& unit : found.plan.units) {
        units.append(nb::make_tuple(nb::str(unit.name.c_str()), unit.bytes, unit.read_bytes));
    }
    nb::list rows;
    for (const std::string& name : found.rows) {
        rows.append(nb::str(name.c_str()));
    }
    nb::dict out;
    out["memory_bytes"] = found.plan.memory_bytes;
    out["used_bytes"] = found.used_bytes();
    out["resident_bytes"] = found.stay_bytes + found.plan.resident_bytes;
    out["slots"] = found.plan.slots;
    out["slot_bytes"] = found.plan.slot_bytes;
    out["read_bytes"] = found.read_bytes();
    out["token_bytes"] = found.weights_of_token();
    out["weight_bytes"] = found.weight_bytes;
    out["least_memory_bytes"] = found.least_memory_bytes;
    out["least_tensor"] = nb::str(found.least_tensor.c_str());
    out["rows"] = nb::tuple(rows);
    out["units"] = units;
    out["experts"] = experts_of(found.experts);
    out["rate"] = rate;
    out["compute_s"] = compute_seconds;
    out["seconds"] = seconds;
    return out;
}

}  // namespace

void bind_weight_plan(nb::module_& m) {
    m.def("forecast_weights", forecast, nb::arg("folders"), nb::arg("memory"), nb::arg("slots"),
          nb::arg("rate"), nb::arg("compute_seconds"), nb::arg("compute_rate"),
          nb::arg("experts").none(),
          nb::sig("def forecast_weights(folders: typing.Any, memory: typing.Any, slots: "
                  "typing.Any, rate: float, compute_seconds: float, compute_rate: float, experts: "
                  "typing.Any) -> dict[str, typing.Any]"),
          "Private; penstock.weights.plan() is public.");
}

}  // namespace penstock::python
