// SPDX-License-Identifier: Apache-2.0
// RowTable and read_rows(): many rows of files, by number.
#include "bind.hpp"
#include "names.hpp"
#include "request.hpp"
#include "transfer_object.hpp"

namespace penstock::python {

namespace {

using Do = nb::object (*)(EngineObject&, Request);

template <Do kDo>
nb::object rows_of(EngineObject& self, nb::handle file, nb::handle ids, nb::handle out,
                   nb::handle base, nb::handle stride, nb::handle row_bytes, nb::handle table_of,
                   nb::handle destinations, nb::handle stream, nb::handle priority,
                   nb::handle block_bytes, nb::handle depth_limit, nb::handle cache) {
    sweep_orphans();
    return kDo(self, parse_rows({file,
                                 ids,
                                 out,
                                 base,
                                 stride,
                                 row_bytes,
                                 table_of,
                                 destinations,
                                 stream,
                                 {priority, block_bytes, depth_limit, cache}}));
}

template <Do kDo>
nb::object rows_of_default(nb::handle file, nb::handle ids, nb::handle out, nb::handle base,
                           nb::handle stride, nb::handle row_bytes, nb::handle table_of,
                           nb::handle destinations, nb::handle stream, nb::handle priority,
                           nb::handle block_bytes, nb::handle depth_limit, nb::handle cache) {
    return rows_of<kDo>(default_engine(), file, ids, out, base, stride, row_bytes, table_of,
                        destinations, stream, priority, block_bytes, depth_limit, cache);
}

#define PENSTOCK_ROWS_SIGNATURE(name, self, returns)                                \
    "def " name "(" self                                                            \
    "file: Path | File | RowTable | collections.abc.Sequence[RowTable], "           \
    "ids: Ids, out: Memory, *, base: int = 0, "                                     \
    "stride: int | None = None, row_bytes: int | None = None, "                     \
    "table_of: Ids | None = None, "                                                 \
    "destinations: Ids | None = None, "                                             \
    "stream: Stream | None = None, "                                                \
    "priority: typing.Literal['urgent', 'normal', 'background'] = 'normal', "       \
    "block_bytes: int | str | None = None, depth_limit: DepthLimit | None = None, " \
    "cache: typing.Literal['auto', 'cached', 'direct', 'required'] | None = None) -> " returns

constexpr const char* kReadRowsDoc =
    "Fills row i of `out` with row ids[i] of a table in a file; blocks. Bytes moved.\n\n"
    "file: a path, a File, a RowTable or a list of those, of one file each. ids: numbers of rows, "
    "0 or more: an integer\n"
    "tensor or array (int64, int32, uint32, uint64; looked at where it lies) or a list; through "
    "all tables, one after\n"
    "the other, unless `table_of` has the number of each one's table. out: a contiguous writable "
    "tensor, array or buffer.\n"
    "Row n of the table begins at byte base + n * stride of the file. row_bytes: of a row, by "
    "default as long as one of\n"
    "`out`; stride: by default row_bytes. destinations: row ids[i] goes to out[destinations[i]]. "
    "Rows near one another are\n"
    "read together, and one that comes twice is read once. stream, priority, block_bytes, "
    "depth_limit, cache: as "
    "of read(). A row that\n"
    "is not there or cannot be read is an error that names it. Ctrl-C cancels.";
constexpr const char* kReadRowsAsyncDoc = "Like read_rows(), but does not block: gives a Transfer.";

template <typename Scope, typename Signature>
void def_rows(Scope& scope, const char* name, auto verb, const Signature& signature,
              const char* doc) {
    scope.def(name, verb, nb::arg("file").none(), nb::arg("ids").none(), nb::arg("out").none(),
              nb::kw_only(), nb::arg("base").none() = 0, nb::arg("stride") = nb::none(),
              nb::arg("row_bytes") = nb::none(), nb::arg("table_of") = nb::none(),
              nb::arg("destinations") = nb::none(), nb::arg("stream") = nb::none(),
              nb::arg("priority").none() = "normal", nb::arg("block_bytes") = nb::none(),
              nb::arg("depth_limit") = nb::none(), nb::arg("cache") = nb::none(), signature, doc);
}

void bind_table(nb::module_& m) {
    nb::class_<TableObject>(
        m, "RowTable",
        "Rows of one length in a file: row n begins at byte base + n * stride.\n\n"
        "file: a path or a File. row_bytes: of a row; by default as long as one of `out`. stride: "
        "bytes from row to row, by\n"
        "default row_bytes. rows: how many there are; by default whatever the file holds.")
        .def(
            "__init__",
            [](TableObject* self, nb::handle file, nb::handle base, nb::handle stride,
               nb::handle row_bytes, nb::handle rows) {
                new (self) TableObject(table_of(file, base, stride, row_bytes, rows));
            },
            nb::arg("file").none(), nb::kw_only(), nb::arg("base").none() = 0,
            nb::arg("stride") = nb::none(), nb::arg("row_bytes") = nb::none(),
            nb::arg("rows") = nb::none(),
            nb::sig("def __init__(self, file: str | bytes | os.PathLike[str] | "
                    "os.PathLike[bytes] | File, *, base: int = 0, stride: int | None = None, "
                    "row_bytes: int | None = None, rows: int | None = None) -> None"))
        .def("__repr__", [](const TableObject& table) {
            return "RowTable(" + shown(table.file) + ", base=" + std::to_string(table.table.base) +
                   ")";
        });
}

}  // namespace

void bind_rows(nb::module_& m) {
    bind_table(m);
    auto engine = nb::borrow<nb::class_<EngineObject>>(m.attr("Engine"));
    def_rows(engine, "read_rows", rows_of<run_request>,
             nb::sig(PENSTOCK_ROWS_SIGNATURE("read_rows", "self, ", "int")), kReadRowsDoc);
    def_rows(engine, "read_rows_async", rows_of<submit_request>,
             nb::sig(PENSTOCK_ROWS_SIGNATURE("read_rows_async", "self, ", "Transfer[int]")),
             kReadRowsAsyncDoc);
    def_rows(m, "read_rows", rows_of_default<run_request>,
             nb::sig(PENSTOCK_ROWS_SIGNATURE("read_rows", "", "int")), kReadRowsDoc);
    def_rows(m, "read_rows_async", rows_of_default<submit_request>,
             nb::sig(PENSTOCK_ROWS_SIGNATURE("read_rows_async", "", "Transfer[int]")),
             kReadRowsAsyncDoc);
}

}  // namespace penstock::python
