// SPDX-License-Identifier: Apache-2.0
#include "bind.hpp"
#include "without_gil.hpp"

#if PENSTOCK_HAS_CLI
#include "cli/run.hpp"
#endif

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

namespace penstock::python {

namespace {

int cli_main(const std::vector<std::string>& arguments) {
#if PENSTOCK_HAS_CLI
    const WithoutGil nogil;
    return cli::run(arguments);
#else
    static_cast<void>(arguments);
    throw nb::import_error("this build of penstock has no command line inside");
#endif
}

}  // namespace

void bind_cli(nb::module_& m) {
    m.def("cli_main", cli_main, nb::arg("arguments"),
          "Runs the `penstock` program (without its name in the arguments); its exit status.");
}

}  // namespace penstock::python
