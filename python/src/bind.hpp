// SPDX-License-Identifier: Apache-2.0
// The topics of the module, one file each.
#pragma once

#include "nanobind.hpp"

namespace penstock::python {

void bind_async(nb::module_& m);
void bind_checkpoint(nb::module_& m);
void bind_cli(nb::module_& m);
void bind_deepnvme(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_engine_report(nb::module_& m);
void bind_errors(nb::module_& m);
void bind_features(nb::module_& m);
void bind_file(nb::module_& m);
void bind_format(nb::module_& m);
void bind_saves(nb::module_& format);
void bind_future(nb::module_& m);
void bind_gpu(nb::module_& m);
void bind_graph(nb::module_& m);
void bind_match(nb::module_& m);
void bind_memory(nb::module_& m);
void bind_names(nb::module_& m);
void bind_npy(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_row_simulation(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_signals(nb::module_& m);
void bind_tensor_rows(nb::module_& m);
void bind_transfer(nb::module_& m);
void bind_unread(nb::module_& m);
void bind_weight_plan(nb::module_& m);
void bind_weights(nb::module_& m);

}  // namespace penstock::python
