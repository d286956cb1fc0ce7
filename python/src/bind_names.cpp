// SPDX-License-Identifier: Apache-2.0
// The names that are read in pickles: what the documentation lists.
#include "bind.hpp"
#include "format/pickle/pickle_names.hpp"
#include "names.hpp"

#include <string>

namespace penstock::python {

void bind_names(nb::module_& m) {
    m.def(
        "names_read",
        [] {
            nb::list out;
            for (const format::PickleName& row : format::kPickleNames) {
                out.append(nb::make_tuple(std::string(row.module), std::string(row.name),
                                          std::string(row.gives)));
            }
            return out;
        },
        "(module, name, what it gives) of each name that is read in pickles");
    m.def(
        "is_name_read",
        [](nb::handle module, nb::handle name) {
            return format::is_name_read(text(module), text(name));
        },
        nb::arg("module"), nb::arg("name"));
}

}  // namespace penstock::python
