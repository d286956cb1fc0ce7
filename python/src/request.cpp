// SPDX-License-Identifier: Apache-2.0
#include "request.hpp"

#include "api/option_table.hpp"
#include "arguments.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "streams.hpp"

#include <penstock/engine.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace penstock::python {

namespace {

bool is_sequence(nb::handle object) {
    return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr());
}

const char* memory_argument(const Arguments& arguments) {
    return arguments.write ? "data" : "into";
}

std::uint64_t offset_value(nb::handle index, const std::string& argument) {
    const unsigned long long value = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        raise_value(argument + ": " + shown(index) +
                    " is not a place in a file; give bytes from its start, 0 or more");
    }
    return value;
}

std::uint64_t offset_of(nb::handle object, const std::string& argument) {
    if (PyLong_CheckExact(object.ptr())) {
        return offset_value(object, argument);
    }
    // A flag in the place of the offset is a slip: read(path, into, True).
    PyObject* index = PyBool_Check(object.ptr()) ? nullptr : PyNumber_Index(object.ptr());
    if (index == nullptr) {
        PyErr_Clear();
        raise_type(argument + ": got " + type_text(object) +
                   "; give bytes from the start of the file (int)");
    }
    return offset_value(nb::steal(index), argument);
}

std::string element(const char* argument, std::size_t index) {
    return std::string(argument) + "[" + std::to_string(index) + "]";
}

const File& open_file(const FileObject& file, const std::string& argument) {
    if (!file.file.is_open()) {
        raise_value(argument + ": '" + file.path + "' is closed; open it again");
    }
    return file.file;
}

// Puts the files of a call into a request, each once, and says which number each got.
class Files {
public:
    explicit Files(TransferRequest& request) : request_(request) {}

    std::uint32_t add(nb::handle object, const std::string& argument) {
        if (nb::isinstance<FileObject>(object)) {
            const File& file = open_file(*nb::inst_ptr<FileObject>(object), argument);
            return add(opened_, file.handle().get(), request_.files, file, argument);
        }
        const std::string path = path_bytes(object, argument.c_str());
        return add(named_, path, request_.paths, path, argument);
    }

private:
    template <typename Key, typename Value>
    std::uint32_t add(std::map<Key, std::uint32_t>& known, const Key& key,
                      std::vector<Value>& values, const Value& value, const std::string& argument) {
        const auto [found, is_new] = known.emplace(key, static_cast<std::uint32_t>(values.size()));
        if (is_new) {
            values.push_back(value);
        }
        if (!request_.files.empty() && !request_.paths.empty()) {
            raise_value(argument +
                        ": paths and File objects do not mix in one transfer; open all, or none");
        }
        return found->second;
    }

    TransferRequest& request_;
    std::map<os::File*, std::uint32_t> opened_;
    std::map<std::string, std::uint32_t> named_;
};

// The memory of one extent; what must stay is kept, and what is to be waited for noted.
Memory take_memory(Request& out, Streams& streams, nb::handle object, const std::string& argument,
                   bool writable) {
    BorrowedMemory borrowed = borrow_anywhere(object, argument, writable, streams.given());
    streams.add(borrowed);
    out.keeps.push_back(std::move(borrowed.keep));
    return borrowed.memory();
}

// Elements of a list or tuple, or of anything else that has them (an array of offsets).
nb::object items_of(nb::handle object, const char* argument, std::size_t count) {
    PyObject* items = PySequence_List(object.ptr());
    if (items == nullptr) {
        PyErr_Clear();
        raise_type(std::string(argument) + ": got " + type_text(object) + "; give a sequence of " +
                   std::to_string(count));
    }
    nb::object owned = nb::steal(items);
    const auto length = static_cast<std::size_t>(PyList_Size(items));
    if (length != count) {
        raise_value(std::string(argument) + ": got " + std::to_string(length) +
                    (length == 1 ? " element" : " elements") + " for " + std::to_string(count) +
                    (count == 1 ? " tensor" : " tensors") + "; give one for each tensor");
    }
    return owned;
}

bool is_one_offset(nb::handle object) {
    if (PyLong_CheckExact(object.ptr())) {
        return true;
    }
    if (PyIndex_Check(object.ptr()) == 0) {
        return false;
    }
    const bool has_elements = PyObject_Size(object.ptr()) >= 0;  // arrays have that slot, too
    PyErr_Clear();
    return !has_elements;
}

// One offset for several tensors means one thing only: each at the start of a file of its own.
nb::object offsets_of(const Arguments& arguments, std::size_t count) {
    if (!is_one_offset(arguments.offset)) {
        return items_of(arguments.offset, "offset", count);
    }
    const std::uint64_t offset = offset_of(arguments.offset, "offset");
    if (count == 0 || (is_sequence(arguments.file) && offset == 0)) {
        return {};
    }
    raise_value("offset: got one for " + std::to_string(count) +
                (count == 1 ? " tensor" : " tensors") + " in a sequence; give a sequence of " +
                std::to_string(count) + " (in bytes, one for each)");
}

void parse_many(const Arguments& arguments, Request& out, Streams& streams) {
    const char* const name = memory_argument(arguments);
    const nb::object tensors = checked(PySequence_List(arguments.memory.ptr()));
    const auto count = static_cast<std::size_t>(PyList_Size(tensors.ptr()));
    const nb::object offsets = offsets_of(arguments, count);
    const bool one_file = !is_sequence(arguments.file);
    const nb::object paths = one_file ? nb::object() : items_of(arguments.file, "file", count);
    out.request.extents.reserve(count);
    out.keeps.reserve(count);
    Files files(out.request);
    const std::uint32_t only = one_file ? files.add(arguments.file, "file") : 0;
    for (std::size_t i = 0; i < count; ++i) {
        const auto at = static_cast<Py_ssize_t>(i);
        const std::uint32_t file =
            one_file ? only : files.add(PyList_GetItem(paths.ptr(), at), element("file", i));
        const std::uint64_t offset =
            offsets.is_valid() ? offset_of(PyList_GetItem(offsets.ptr(), at), element("offset", i))
                               : 0;
        out.request.extents.push_back({offset,
                                       take_memory(out, streams, PyList_GetItem(tensors.ptr(), at),
                                                   element(name, i), !arguments.write),
                                       file});
    }
}

void parse_one(const Arguments& arguments, Request& out, Streams& streams) {
    if (is_sequence(arguments.file)) {
        raise_value(
            std::string("file: several came for one tensor; give a sequence of tensors as `") +
            memory_argument(arguments) + "` too");
    }
    const bool is_open = nb::isinstance<FileObject>(arguments.file);
    if (is_open) {
        out.one.emplace().file = open_file(*nb::inst_ptr<FileObject>(arguments.file), "file");
    } else {
        out.request.paths.push_back(path_bytes(arguments.file, "file"));
    }
    const Memory memory =
        take_memory(out, streams, arguments.memory, memory_argument(arguments), !arguments.write);
    // After the memory: a generator with a list of offsets lacks a list, not an offset.
    const std::uint64_t offset = offset_of(arguments.offset, "offset");
    if (is_open) {
        out.one->memory = memory;
        out.one->offset = offset;
    } else {
        out.request.extents.push_back({offset, memory, 0});
    }
}

}  // namespace

Priority priority_of(nb::handle priority) {
    static const Name normal("normal");
    static const Name urgent("urgent");
    static const Name background("background");
    if (priority.ptr() == normal.get()) {
        return Priority::kNormal;
    }
    if (PyUnicode_Check(priority.ptr())) {
        if (PyUnicode_Compare(priority.ptr(), normal.get()) == 0) {
            return Priority::kNormal;
        }
        if (PyUnicode_Compare(priority.ptr(), urgent.get()) == 0) {
            return Priority::kUrgent;
        }
        if (PyUnicode_Compare(priority.ptr(), background.get()) == 0) {
            return Priority::kBackground;
        }
    }
    raise_value("priority: " + shown(priority) +
                " is not a priority; expected 'urgent', 'normal' or 'background'");
}

CachePolicy cache_policy_of(nb::handle cache) {
    const std::string word = word_of(cache, "cache");
    const auto policy = cache_policy_named(word);
    if (!policy) {
        raise_value("cache: got " + quoted(word) + "; expected " + api::kCachePoliciesAllowed);
    }
    return *policy;
}

namespace {

std::uint32_t block_bytes_of(nb::handle block_bytes) {
    if (block_bytes.is_none()) {
        return 0;
    }
    const std::uint64_t value = size_of(block_bytes, "block_bytes", "bytes of a request");
    if (value == 0) {
        raise_value("block_bytes: 0 is no size of a request; give bytes, 1 or more");
    }
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, 1U << 30));
}

DepthLimit depth_limit_of(nb::handle limit) {
    if (limit.is_none()) {
        return {};
    }
    if (!nb::isinstance<DepthLimit>(limit)) {
        raise_type("depth_limit: got " + type_text(limit) + "; give a penstock.DepthLimit");
    }
    return *nb::inst_ptr<DepthLimit>(limit);
}

void set_manner(TransferOptions& options, const Manner& manner) {
    options.priority = priority_of(manner.priority);
    options.block_bytes = block_bytes_of(manner.block_bytes);
    options.depth_limit = depth_limit_of(manner.depth_limit);
    if (!manner.cache.is_none()) {
        options.cache = cache_policy_of(manner.cache);
    }
}

}  // namespace

Request parse(const Arguments& arguments) {
    Request out;
    out.request.write = arguments.write;
    set_manner(out.request.options, arguments.manner);
    Streams streams(arguments.stream, out.request.options);
    const bool flag = flag_of(arguments.flag, arguments.write ? "sync" : "allow_short");
    out.request.options.allow_short = !arguments.write && flag;
    out.request.options.sync = arguments.write && flag;
    if (is_sequence(arguments.memory)) {
        parse_many(arguments, out, streams);
        out.list_result = out.request.options.allow_short;
    } else {
        parse_one(arguments, out, streams);
    }
    streams.check();
    out.extent_count = out.one ? 1 : out.request.extents.size();
    if (!arguments.manner.cache.is_none() && (out.one || !out.request.files.empty())) {
        raise_value(
            "cache: an open File has a policy of its own; give it to penstock.File(), or give "
            "this call a path");
    }
    return out;
}

TableObject table_of(nb::handle file, nb::handle base, nb::handle stride, nb::handle row_bytes,
                     nb::handle rows) {
    TableObject made{.file = nb::borrow(file)};
    made.table.base = count_of(base, "base", "bytes from the start of the file");
    made.row_bytes_open = row_bytes.is_none();
    if (!made.row_bytes_open) {
        made.table.row_bytes = count_of(row_bytes, "row_bytes", "bytes of a row");
    }
    if (!stride.is_none()) {
        made.table.stride_bytes = count_of(stride, "stride", "bytes from row to row");
    }
    if (!rows.is_none()) {
        made.table.rows = count_of(rows, "rows", "rows");
    }
    return made;
}

namespace {

// Bytes from one row of `out` to the next; nothing where it has none.
std::uint64_t row_bytes_of(nb::handle out, std::uint64_t bytes) {
    const Py_ssize_t rows = PyObject_Size(out.ptr());
    if (rows < 0) {
        PyErr_Clear();
        return 0;
    }
    return rows == 0 ? 0 : bytes / static_cast<std::uint64_t>(rows);
}

void add_table(Request& out, Files& files, const TableObject& given, const std::string& argument,
               std::uint64_t place_bytes) {
    RowTable table = given.table;
    table.file = files.add(given.file, argument);
    if (given.row_bytes_open) {
        table.row_bytes = place_bytes;
    }
    out.request.rows->tables.push_back(table);
    Rows& rows = *out.request.rows;
    rows.memory_stride_bytes = std::max(rows.memory_stride_bytes, table.row_bytes);
}

// One table, or a list of them; else one of a file, by what else came.
void add_tables(Request& out, const RowArguments& arguments, std::uint64_t place_bytes) {
    Files files(out.request);
    out.request.rows->memory_stride_bytes = place_bytes;
    const bool several = is_sequence(arguments.file);
    if (!several && !nb::isinstance<TableObject>(arguments.file)) {
        add_table(out, files,
                  table_of(arguments.file, arguments.base, arguments.stride, arguments.row_bytes,
                           nb::none()),
                  "file", place_bytes);
        return;
    }
    if (!arguments.stride.is_none() || !arguments.row_bytes.is_none() ||
        count_of(arguments.base, "base", "bytes from the start of the file") != 0) {
        raise_value("base, stride and row_bytes are of a file; a RowTable has its own");
    }
    const nb::object tables = several ? checked(PySequence_List(arguments.file.ptr()))
                                      : nb::object(nb::make_tuple(arguments.file));
    std::size_t index = 0;
    for (const nb::handle table : tables) {
        const std::string argument = several ? element("file", index++) : "file";
        if (!nb::isinstance<TableObject>(table)) {
            raise_type(argument + ": got " + type_text(table) +
                       "; give a penstock.RowTable for each table");
        }
        add_table(out, files, *nb::inst_ptr<TableObject>(table), argument, place_bytes);
    }
}

}  // namespace

Request parse_rows(const RowArguments& arguments) {
    Request out;
    set_manner(out.request.options, arguments.manner);
    Streams streams(arguments.stream, out.request.options);
    const Memory memory = take_memory(out, streams, arguments.out, "out", true);
    streams.check();
    out.request.rows.emplace().memory = memory;
    add_tables(out, arguments, row_bytes_of(arguments.out, memory.bytes));
    Rows& rows = *out.request.rows;
    out.numbers.emplace_back(arguments.ids, "ids");
    rows.ids = out.numbers.back().values();
    if (!arguments.destinations.is_none()) {
        out.numbers.emplace_back(arguments.destinations, "destinations");
        rows.destinations = out.numbers.back().values();
    }
    if (!arguments.table_of.is_none()) {
        const RowNumbers numbers(arguments.table_of, "table_of");
        out.table_of.reserve(numbers.values().size());
        for (const std::uint64_t table : numbers.values()) {
            out.table_of.push_back(
                static_cast<std::uint32_t>(std::min<std::uint64_t>(table, UINT32_MAX)));
        }
        rows.table_of = out.table_of;
    }
    return out;
}

}  // namespace penstock::python
