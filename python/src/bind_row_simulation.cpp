// SPDX-License-Identifier: Apache-2.0
// What a cache of rows would save: penstock.features.simulate().
#include "arguments.hpp"
#include "bind.hpp"
#include "engine_object.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "row_numbers.hpp"

#include <penstock/features.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

RowTrace trace_of(nb::handle batches) {
    RowTrace trace;
    for (const nb::handle batch : nb::iter(batches)) {
        trace.add(RowNumbers(batch, "trace").values());
    }
    return trace;
}

RowTrace trace_in(nb::handle path, std::uint64_t batch) {
    const std::string name = path_bytes(path, "trace", "");
    EngineObject& made = default_engine();
    made.used = true;
    const std::shared_ptr<Engine> engine = opened(made);
    const nb::gil_scoped_release nogil;
    return read_row_trace(*engine, name, batch);
}

nb::list simulate_rows(nb::handle trace, bool is_path, nb::handle batch, nb::handle slots,
                       nb::handle policies, nb::handle window, nb::handle warm_up, nb::handle hot) {
    RowSimulationOptions options;
    options.slots = count_of(slots, "slots", "rows");
    options.window = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(count_of(window, "window", "batches"), UINT32_MAX));
    options.warm_up = count_of(warm_up, "warm_up", "batches");
    const RowNumbers hot_rows = hot.is_none() ? RowNumbers() : RowNumbers(hot, "hot");
    options.hot = hot_rows.values();
    std::vector<std::string> names;
    if (policies.is_none()) {
        const std::span<const std::string_view> known = row_simulation_policies();
        names.assign(known.begin(), known.end());
    } else {
        for (const nb::handle name : nb::iter(policies)) {
            names.push_back(word_of(name, "policies"));
        }
    }
    const std::uint64_t ids = count_of(batch, "batch", "ids");
    const RowTrace rows = is_path ? trace_in(trace, ids) : trace_of(trace);
    std::vector<RowSimulation> runs;
    {
        const nb::gil_scoped_release nogil;
        const RowSimulator simulator(rows);
        for (const std::string& name : names) {
            runs.push_back(simulator.run(name, options));
        }
    }
    nb::list out;
    for (std::size_t i = 0; i < names.size(); ++i) {
        out.append(nb::make_tuple(nb::str(names[i].c_str()), runs[i].batches, runs[i].rows,
                                  runs[i].rows_read, runs[i].preloaded));
    }
    return out;
}

}  // namespace

void bind_row_simulation(nb::module_& m) {
    m.def("simulate_rows", simulate_rows, nb::arg("trace"), nb::arg("is_path"), nb::arg("batch"),
          nb::arg("slots"), nb::arg("policies").none(), nb::arg("window"), nb::arg("warm_up"),
          nb::arg("hot").none(),
          nb::sig("def simulate_rows(trace: typing.Any, is_path: bool, batch: int, slots: int, "
                  "policies: collections.abc.Iterable[str] | None, window: int, warm_up: int, hot: "
                  "typing.Any) -> list[tuple[str, int, int, int, int]]"),
          "Private; penstock.features.simulate() is public.");
}

}  // namespace penstock::python
