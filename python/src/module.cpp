// SPDX-License-Identifier: Apache-2.0
// penstock._core: the table of contents.
#include "bind.hpp"

#include <penstock/version.hpp>

NB_MODULE(_core, m) {
    namespace python = penstock::python;
    // An interpreter that is ended by force leaves objects behind, which is no leak of ours.
    nanobind::set_leak_warnings(false);
    m.doc() = "The compiled part of penstock; use the package.";
    m.attr("version") = PENSTOCK_VERSION;
    python::bind_errors(m);
    python::bind_memory(m);
    python::bind_file(m);
    python::bind_future(m);
    python::bind_transfer(m);
    python::bind_gpu(m);
    python::bind_engine(m);
    python::bind_rows(m);
    python::bind_tensor_rows(m);
    python::bind_graph(m);
    python::bind_npy(m);
    python::bind_unread(m);
    python::bind_format(m);
    python::bind_match(m);
    python::bind_names(m);
    python::bind_async(m);
    python::bind_checkpoint(m);
    python::bind_signals(m);
    python::bind_deepnvme(m);
    python::bind_weights(m);
    python::bind_weight_plan(m);
    python::bind_features(m);
    python::bind_row_simulation(m);
    python::bind_plan(m);
    python::bind_cli(m);
}
