// SPDX-License-Identifier: Apache-2.0
// Files of formats for penstock/_state.py: made of objects, written by the engine; read, and
// made into objects. Private: what users see is save(), load() and inspect().
#include "arguments.hpp"
#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/raise.hpp"
#include "bind.hpp"
#include "buffer_object.hpp"
#include "engine_object.hpp"
#include "file_image_object.hpp"
#include "file_object.hpp"
#include "format/safetensors.hpp"
#include "format/torch_file.hpp"
#include "format/torch_types.hpp"
#include "memory/fresh_memory.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "state/file_writer.hpp"
#include "state/piece_sums.hpp"
#include "state/replace.hpp"
#include "state/selection.hpp"
#include "state/sum_table.hpp"
#include "state/tensor_file.hpp"
#include "stream/file_bytes.hpp"
#include "stream/file_reader.hpp"
#include "without_gil.hpp"
#include "writable.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace penstock::python {

namespace {

constexpr std::uint64_t kWriteBytes = 16 * base::kMiB;
constexpr std::array<std::byte, base::kPageBytes> kZeros{};

std::span<const std::byte> span_of(const nb::bytes& bytes) {
    return std::as_bytes(std::span(bytes.c_str(), bytes.size()));
}

void save(FileImageObject& self, nb::handle to, nb::handle progress, bool sync) {
    const std::string path = path_bytes(to, "path", "");
    const std::shared_ptr<Engine> engine = opened(default_engine());
    run_with_progress(progress, [&](const Progress& report) {
        state::save_file(*engine, FileSystem::local(), path, self.image, report, sync);
    });
}

void save_index(nb::handle to, nb::handle tensors, nb::handle metadata, std::uint64_t shard_bytes,
                nb::handle progress, bool sync) {
    const std::string path = path_bytes(to, "path", "");
    TensorRows rows = rows_of(tensors, metadata);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    run_with_progress(progress, [&](const Progress& report) {
        state::save_index(*engine, FileSystem::local(), path, std::move(rows.named),
                          {.shard_bytes = shard_bytes, .sync = sync, .progress = report});
    });
}

// In the order of the file, to a Python function: for whatever is not a file of the system.
void write_to(FileImageObject& self, nb::handle write, nb::handle progress) {
    const std::uint64_t total = self.image.file().total_bytes();
    {
        const WithoutGil nogil;
        state::PieceSums sums(self.image);
        for (const std::size_t payload : self.image.sums_in({0, total})) {
            while (!sums.await(payload, kSignalSlice)) {
            }
            self.image.set_sums(payload, sums.of(payload));
        }
    }
    for (const auto range : format::cut_ranges(total, base::kPageBytes, kWriteBytes)) {
        for (const format::PieceSlice& slice : self.image.file().slices(range)) {
            const void* memory = slice.literal;
            if (slice.kind == format::Piece::Kind::kPayload) {
                memory = self.image.payloads()[slice.payload].data() + slice.payload_offset;
            } else if (slice.kind == format::Piece::Kind::kZeros) {
                PENSTOCK_ASSERT(slice.bytes <= kZeros.size());
                memory = kZeros.data();
            }
            const nb::object view =
                checked(PyMemoryView_FromMemory(static_cast<char*>(const_cast<void*>(memory)),
                                                static_cast<Py_ssize_t>(slice.bytes), PyBUF_READ));
            write(view);
            view.attr("release")();  // nobody keeps a share of memory that is not Python's
        }
        if (!progress.is_none()) {
            progress(range.end, total);
        }
    }
}

// A file that the caller writes, by the name of its temporary file.
class ReplacementObject {
public:
    explicit ReplacementObject(nb::handle path)
        : replacement_(std::in_place, FileSystem::local(), path_bytes(path, "path", "")) {}
    [[nodiscard]] const state::Replacement& get() const {
        if (!replacement_) {
            raise_value("the file is closed");
        }
        return *replacement_;
    }
    void commit() {
        static_cast<void>(get());
        const WithoutGil nogil;
        replacement_->commit();
        replacement_.reset();
    }
    void give_up() {
        const WithoutGil nogil;
        replacement_.reset();
    }

private:
    std::optional<state::Replacement> replacement_;
};

// The content of a file of tensors, and the file: open, or its bytes.
struct TensorFileObject {
    std::string path;  ///< for messages
    File file;
    nb::object bytes;         ///< where there is no file
    std::uint64_t begin = 0;  ///< of what is read, in the file
    state::FileContent content;
    std::optional<state::SumTable> table;
};

// An error has the user's verb, and not the engine's.
File open_for(const std::string& path, const std::string& verb) {
    try {
        return File(path);
    } catch (const Error& error) {
        if (error.system_errno() == 0) {
            throw;
        }
        base::raise(base::system_error(error.system_errno(), verb, path));
    }
}

// Rows of the content: (offset, bytes, location, CRC) of each storage of a .pt; (name, type, shape,
// begin, end) of each tensor of a .safetensors; (tensor, file) of an index.
std::pair<const char*, nb::list> rows_of(const format::torch_file::File& content) {
    nb::list rows;
    for (std::size_t i = 0; i < content.storages.size(); ++i) {
        const auto& s = content.storages[i];
        rows.append(nb::make_tuple(s.offset, s.bytes, content.tree.storages[i].location, s.crc));
    }
    return {"pt", rows};
}

std::pair<const char*, nb::list> rows_of(const format::safetensors::Header& content) {
    nb::list rows;
    for (const auto& t : content.tensors) {
        rows.append(nb::make_tuple(t.name, std::string(format::safetensors::name_of(t.type)),
                                   nb::cast(t.shape), content.data_begin + t.begin,
                                   content.data_begin + t.end));
    }
    return {"safetensors", rows};
}

std::pair<const char*, nb::list> rows_of(const format::ShardIndex& content) {
    nb::list rows;
    for (const auto& [tensor, file] : content.weight_map) {
        rows.append(nb::make_tuple(tensor, file));
    }
    return {"index", rows};
}

void read_content(TensorFileObject& self, nb::handle bytes) {
    const std::shared_ptr<Engine> engine = self.file.is_open() ? opened(default_engine()) : nullptr;
    const auto in_memory =
        engine ? std::span<const std::byte>() : span_of(nb::cast<nb::bytes>(bytes));
    const WithoutGil nogil;
    if (engine) {
        stream::FileBytes source(*engine, self.file, self.begin);
        self.content = state::read_content(source, self.path);
    } else {
        format::MemorySource source(in_memory);
        self.content = state::read_content(source, self.path);
    }
    if (const auto* header = std::get_if<format::safetensors::Header>(&self.content)) {
        self.table = state::parse_sum_table(*header, self.path);
    }
}

// `from`: None (what the path names), a descriptor, or bytes. (file, kind, rows, bytes of a piece
// that has a checksum).
nb::tuple open_tensors(nb::handle from, nb::handle path, std::uint64_t begin, nb::handle by) {
    const std::string verb = word_of(by, "verb");
    TensorFileObject self;
    self.path = path_bytes(path, "path", "");
    self.begin = begin;
    if (PyBytes_Check(from.ptr())) {
        self.bytes = nb::borrow(from);
    } else {
        const std::string name =
            from.is_none() ? self.path : "/proc/self/fd/" + std::to_string(nb::cast<int>(from));
        const WithoutGil nogil;
        self.file = open_for(name, verb);
    }
    read_content(self, from);
    const auto [kind, rows] =
        std::visit([](const auto& content) { return rows_of(content); }, self.content);
    const std::uint64_t piece_bytes = self.table ? self.table->piece_bytes : 0;
    return nb::make_tuple(nb::cast(std::move(self)), kind, rows, piece_bytes);
}

std::vector<stream::Wanted> wanted_of(const TensorFileObject& self, const nb::list& rows) {
    std::vector<stream::Wanted> wanted;
    wanted.reserve(nb::len(rows));
    for (const nb::handle row : rows) {
        stream::Wanted w;
        w.offset = nb::cast<std::uint64_t>(row[0]);
        w.into = {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(row[1])),
                  nb::cast<std::size_t>(row[2])};
        w.crc = nb::cast<std::uint32_t>(row[3]);
        const auto tensor = nb::cast<std::int64_t>(row[4]);
        if (self.table && tensor >= 0) {
            state::add_sums(w, std::get<format::safetensors::Header>(self.content), *self.table,
                            static_cast<std::size_t>(tensor));
        }
        w.offset += self.begin;
        wanted.push_back(w);
    }
    return wanted;
}

// `rows`: (offset, address, bytes, CRC or 0, tensor or -1) each. `pages`: addresses that must be
// writable, or nothing is read. ("page", its number, why not), ("sum", the number of a row that is
// not what was saved, offset, bytes, expected, found), or None.
nb::object read_rows(TensorFileObject& self, const nb::list& rows, const nb::list& pages,
                     bool fresh, nb::handle progress) {
    for (std::size_t i = 0; i < nb::len(pages); ++i) {
        const auto address = nb::cast<std::uintptr_t>(pages[i]);
        const std::string why = why_not_writable(reinterpret_cast<const void*>(address));
        if (!why.empty()) {
            return nb::make_tuple("page", i, why);
        }
    }
    const std::vector<stream::Wanted> wanted = wanted_of(self, rows);
    std::optional<stream::WrongSum> wrong;
    if (!self.file.is_open()) {
        const auto bytes = span_of(nb::cast<nb::bytes>(self.bytes));
        const WithoutGil nogil;
        for (const stream::Wanted& w : wanted) {
            PENSTOCK_ASSERT(w.offset <= bytes.size() && w.into.size() <= bytes.size() - w.offset);
            std::copy_n(bytes.data() + w.offset, w.into.size(), w.into.data());
        }
        wrong = stream::check_sums(wanted);
    } else {
        const std::shared_ptr<Engine> engine = opened(default_engine());
        run_with_progress(progress, [&](const Progress& told) {
            wrong = stream::read_file(*engine, self.file, wanted, {.fresh = fresh}, told);
        });
    }
    if (!wrong) {
        return nb::none();
    }
    return nb::make_tuple("sum", wrong->wanted, wrong->offset, wrong->bytes, wrong->expected,
                          wrong->found);
}

std::vector<std::string> texts_of(const nb::list& words) {
    std::vector<std::string> out;
    out.reserve(nb::len(words));
    for (const nb::handle word : words) {
        out.push_back(text(word));
    }
    return out;
}

// (number among the names, number of what it was chosen by) each.
nb::list select(const nb::list& names, const nb::list& wanted, nb::handle path) {
    const std::vector<std::string> name_texts = texts_of(names);
    const std::vector<std::string> wanted_texts = texts_of(wanted);
    const std::vector<std::string_view> name_views(name_texts.begin(), name_texts.end());
    const std::vector<std::string_view> wanted_views(wanted_texts.begin(), wanted_texts.end());
    auto found = state::select(name_views, wanted_views);
    if (!found) {
        const std::string message =
            "load: " + quoted(path_bytes(path, "path", "")) + ": " + found.error().message;
        PyErr_SetObject(PyExc_KeyError, path_object(message).ptr());
        throw nb::python_error();
    }
    nb::list out;
    for (const state::Selected& one : *found) {
        out.append(nb::make_tuple(one.tensor, one.wanted));
    }
    return out;
}

// Memory of a load, of which tensors are made.
class FreshObject {
public:
    explicit FreshObject(nb::handle stretches) : memory_(memory_for(stretches_of(stretches))) {}
    [[nodiscard]] std::uintptr_t address(std::size_t stretch) const {
        return reinterpret_cast<std::uintptr_t>(memory_.address(stretch));
    }
    // (Buffer that keeps it, where the stretch begins in that).
    nb::object part(std::size_t stretch) {
        const memory::FreshMemory::Place& place = memory_.place(stretch);
        if (!last_.is_valid() || place.part != last_part_) {  // many small ones share one
            last_part_ = place.part;
            BufferObject out;
            out.type = &byte_type();
            if (place.part) {
                out.data = place.part->bytes().data();
                out.bytes = place.part->bytes().size();
            }
            out.shape = {static_cast<std::int64_t>(out.bytes)};
            out.strides_bytes = {1};
            out.pinned_reason = "it was not asked for";
            out.owner = place.part;
            last_ = nb::cast(std::move(out));
        }
        return nb::make_tuple(last_, place.offset);
    }

private:
    static memory::FreshMemory memory_for(const std::vector<memory::Stretch>& stretches) {
        auto made = memory::FreshMemory::make(stretches);
        if (!made && made.error().code == ErrorCode::kOutOfMemory) {
            made.error().message += "; load a part by `names`, or with mmap=True";
        }
        return base::unwrap(std::move(made));
    }
    static std::vector<memory::Stretch> stretches_of(nb::handle pairs) {
        std::vector<memory::Stretch> out;
        for (const nb::handle pair : nb::iter(pairs)) {
            out.push_back({nb::cast<std::uint64_t>(pair[0]), nb::cast<std::uint64_t>(pair[1])});
        }
        return out;
    }

    memory::FreshMemory memory_;
    std::shared_ptr<memory::FreshMemory::Part> last_part_;
    nb::object last_;
};

}  // namespace

void bind_format(nb::module_& parent) {
    nb::module_ m = parent.def_submodule("_format", "Formats of checkpoints; private.");
    nb::class_<FileImageObject>(m, "FileImage")
        .def_prop_ro("total_bytes",
                     [](const FileImageObject& f) { return f.image.file().total_bytes(); })
        .def_prop_ro("payload_bytes",
                     [](const FileImageObject& f) { return f.image.payload_bytes(); })
        .def("save", save, nb::arg("path"), nb::arg("progress").none() = nb::none(),
             nb::arg("sync") = true,
             "Puts it under a path, whole, atomic and, with sync, durable. progress: (done, total) "
             "in "
             "bytes.")
        .def("write_to", write_to, nb::arg("write"), nb::arg("progress").none() = nb::none());
    nb::class_<TensorFileObject>(m, "TensorFile")
        .def(
            "objects",
            [](const TensorFileObject& f, nb::handle storages) {
                return objects_of(std::get<format::torch_file::File>(f.content).tree, storages);
            },
            nb::arg("storages"), "The state of a .pt.")
        .def("read", read_rows, nb::arg("rows"), nb::arg("pages"), nb::arg("fresh"),
             nb::arg("progress").none());
    m.def("open_tensors", open_tensors, nb::arg("file").none(), nb::arg("path"), nb::arg("begin"),
          nb::arg("verb"));
    nb::class_<FreshObject>(m, "FreshMemory")
        .def(nb::init<nb::handle>(), nb::arg("stretches"),
             "stretches: (offset in the file, bytes) each.")
        .def("address", &FreshObject::address, nb::arg("stretch"))
        .def("part", &FreshObject::part, nb::arg("stretch"));
    m.def(
        "torch_types",
        [] {
            nb::list out;
            for (const auto& row : format::kTorchTypes) {
                if (row.in_safetensors && row.bits % 8 == 0) {
                    out.append(nb::make_tuple(std::string(row.name), row.torch));
                }
            }
            return out;
        },
        "(name in safetensors, in torch) each; whose elements are whole bytes");
    m.def("select", select, nb::arg("names"), nb::arg("wanted"), nb::arg("path"));
    m.def(
        "lacking",
        [](nb::handle wanted, const nb::list& names) {
            const std::vector<std::string> texts = texts_of(names);
            const std::vector<std::string_view> views(texts.begin(), texts.end());
            return state::lacking(text(wanted), views);
        },
        nb::arg("wanted"), nb::arg("names"));
    m.def("image_of_state", image_of_state, nb::arg("object").none(), nb::arg("folder"));
    m.def("image_of_tensors", image_of_tensors, nb::arg("tensors"), nb::arg("metadata"),
          nb::arg("checksums") = true);
    m.def("save_index", save_index, nb::arg("path"), nb::arg("tensors"), nb::arg("metadata"),
          nb::arg("shard_bytes"), nb::arg("progress").none(), nb::arg("sync") = true);
    m.def(
        "parse_shard_index",
        [](const nb::bytes& text, nb::handle path) {
            format::MemorySource source(span_of(text));
            return state::read_index(source, path_bytes(path, "path", "")).weight_map;
        },
        nb::arg("json"), nb::arg("path") = "", "(tensor, file) each");
    nb::class_<ReplacementObject>(m, "Replacement")
        .def(nb::init<nb::handle>(), nb::arg("path"))
        .def_prop_ro("temporary",
                     [](const ReplacementObject& r) { return path_object(r.get().temporary()); })
        .def("commit", &ReplacementObject::commit)
        .def("give_up", &ReplacementObject::give_up);
}

}  // namespace penstock::python
