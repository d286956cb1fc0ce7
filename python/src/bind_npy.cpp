// SPDX-License-Identifier: Apache-2.0
// What penstock/_state/npy.py stands on: the header of a .npy file, and the elements of many.
#include "arguments.hpp"
#include "bind.hpp"
#include "borrowed_memory.hpp"
#include "engine_object.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "request.hpp"

#include <penstock/tensor_table.hpp>

#include <string>
#include <vector>

namespace penstock::python {

namespace {

nb::tuple header_of(nb::handle path) {
    const std::string name = path_bytes(path, "paths[0]", "");
    const std::shared_ptr<Engine> engine = opened(default_engine());
    NpyHeader header;
    {
        const nb::gil_scoped_release nogil;
        header = read_npy_header(*engine, name);
    }
    nb::list shape;
    for (const std::uint64_t dimension : header.shape) {
        shape.append(dimension);
    }
    return nb::make_tuple(header.dtype, nb::tuple(shape), header.header_bytes, header.data_bytes);
}

void read_files(nb::handle paths, nb::handle header, nb::handle out, nb::handle cache,
                nb::handle progress) {
    std::vector<std::string> names;
    names.reserve(nb::len(paths));
    for (const nb::handle path : nb::iter(paths)) {
        names.push_back(
            path_bytes(path, ("paths[" + std::to_string(names.size()) + "]").c_str(), ""));
    }
    const NpyHeader expected{
        word_of(header[0], "header"), counts_of(header[1], "header", "dimensions"),
        count_of(header[2], "header", "bytes"), count_of(header[3], "header", "bytes")};
    const NpyOptions options{cache_policy_of(cache), {}};
    const BorrowedMemory memory = borrow(out, "out", true);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    run_with_progress(progress, [&](const Progress& report) {
        NpyOptions reported = options;
        reported.progress = report;
        read_npy(*engine, names, expected, {memory.data, memory.bytes}, reported);
    });
}

}  // namespace

void bind_npy(nb::module_& m) {
    m.def("npy_header", header_of, nb::arg("path").none(),
          nb::sig("def npy_header(path: typing.Any) -> tuple[str, tuple[int, ...], int, int]"),
          "(dtype, shape, bytes of the header, bytes of the elements) of a .npy file.");
    m.def("npy_files", read_files, nb::arg("paths").none(), nb::arg("header").none(),
          nb::arg("out").none(), nb::arg("cache").none(), nb::arg("progress").none(),
          nb::sig("def npy_files(paths: typing.Any, header: tuple[str, tuple[int, ...], int, int], "
                  "out: typing.Any, cache: str, "
                  "progress: collections.abc.Callable[[int, int], object] | None) -> None"),
          "Reads the elements of files with this header, one after the other, into out.");
}

}  // namespace penstock::python
