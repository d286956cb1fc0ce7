// SPDX-License-Identifier: Apache-2.0
// TensorRows for penstock/weights. Private: what users see is penstock.TensorRows.
#include "arguments.hpp"
#include "bind.hpp"
#include "borrowed_memory.hpp"
#include "engine_object.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "request.hpp"
#include "row_numbers.hpp"
#include "transfer_object.hpp"

#include <penstock/tensor_table.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

struct TensorRowsObject {
    std::optional<TensorRows> rows;
};

void open_rows(TensorRowsObject& self, nb::handle path, nb::handle names) {
    const std::string folder = path_bytes(path, "path", "");
    std::vector<std::string> wanted;
    for (const nb::handle name : nb::iter(names)) {
        wanted.push_back(word_of(name, "names"));
    }
    const std::shared_ptr<Engine> engine = opened(default_engine());
    const nb::gil_scoped_release nogil;
    self.rows.emplace(engine, inspect(engine, folder), wanted);
}

// The request that gather() and gather_async() of C++ submit, with the objects that it uses.
Request request_of(const TensorRowsObject& self, nb::handle ids, nb::handle out) {
    sweep_orphans();
    Request made;
    BorrowedMemory memory = borrow(out, "out", true);
    made.keeps.push_back(std::move(memory.keep));
    made.numbers.emplace_back(ids, "ids");
    made.request = self.rows->request(made.numbers.back().values(), {memory.data, memory.bytes});
    return made;
}

nb::tuple row_shape(const TensorRowsObject& self) {
    nb::list out;
    for (const std::uint64_t length : self.rows->row_shape()) {
        out.append(length);
    }
    return nb::tuple(out);
}

}  // namespace

void bind_tensor_rows(nb::module_& m) {
    nb::class_<TensorRowsObject>(m, "TensorRows", "Private; penstock.TensorRows is public.")
        .def(
            "__init__",
            [](TensorRowsObject* self, nb::handle path, nb::handle names) {
                auto* const made = new (self) TensorRowsObject;
                try {
                    open_rows(*made, path, names);
                } catch (...) {
                    made->~TensorRowsObject();
                    throw;
                }
            },
            nb::arg("path"), nb::arg("names"))
        .def(
            "gather",
            [](TensorRowsObject& self, nb::handle ids, nb::handle out) {
                return run_request(default_engine(), request_of(self, ids, out));
            },
            nb::arg("ids"), nb::arg("out"),
            nb::sig("def gather(self, ids: object, out: object) -> int"))
        .def(
            "gather_async",
            [](TensorRowsObject& self, nb::handle ids, nb::handle out) {
                return submit_request(default_engine(), request_of(self, ids, out));
            },
            nb::arg("ids"), nb::arg("out"),
            nb::sig("def gather_async(self, ids: object, out: object) -> Transfer"))
        .def_prop_ro("rows", [](const TensorRowsObject& self) { return self.rows->rows(); })
        .def_prop_ro(
            "dtype",
            [](const TensorRowsObject& self) { return nb::str(self.rows->dtype().c_str()); },
            nb::sig("def dtype(self) -> str"))
        .def_prop_ro("row_shape", row_shape, nb::sig("def row_shape(self) -> tuple[int, ...]"))
        .def("close", [](TensorRowsObject& self) { self.rows->close(); });
}

}  // namespace penstock::python
