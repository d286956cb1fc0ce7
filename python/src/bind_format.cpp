// SPDX-License-Identifier: Apache-2.0
// Files of formats for penstock/_state.py: made of objects, written by the engine; read, and
// made into objects. Private: what users see is save(), load() and inspect().
#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/raise.hpp"
#include "bind.hpp"
#include "buffer_object.hpp"
#include "engine_object.hpp"
#include "file_image_object.hpp"
#include "file_object.hpp"
#include "format/file_kind.hpp"
#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "format/torch_file.hpp"
#include "memory/fresh_memory.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "state/file_writer.hpp"
#include "state/piece_sums.hpp"
#include "state/replace.hpp"
#include "state/sum_table.hpp"
#include "stream/file_reader.hpp"
#include "without_gil.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

constexpr std::uint64_t kWriteBytes = 16 * base::kMiB;
constexpr std::array<std::byte, base::kPageBytes> kZeros{};

// A file by its descriptor, from a byte of it on, for the few small reads that a format asks for.
class DescriptorSource final : public format::ByteSource {
public:
    DescriptorSource(int fd, std::uint64_t base) : fd_(fd), base_(base) {
        struct stat info {};
        const auto bytes = ::fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
        size_ = bytes - std::min(bytes, base);
    }
    [[nodiscard]] std::uint64_t size() const override { return size_; }
    [[nodiscard]] format::Result<void> read(std::uint64_t offset,
                                            std::span<std::byte> into) override {
        offset += base_;
        while (!into.empty()) {
            const ssize_t got = ::pread(fd_, into.data(), into.size(), static_cast<off_t>(offset));
            if (got < 0 && errno == EINTR) {
                continue;
            }
            if (got < 0) {
                return base::fail(base::system_error(errno, "read", "", offset));
            }
            if (got == 0) {
                return base::fail(base::error(ErrorCode::kEndOfFile, "read",
                                              "the file became shorter while it was read", "",
                                              offset));
            }
            into = into.subspan(static_cast<std::size_t>(got));
            offset += static_cast<std::uint64_t>(got);
        }
        return {};
    }
    [[nodiscard]] format::Result<void> read_many(std::span<const format::ByteRead> reads) override {
        // The kernel fetches the pages of one group while those before it are waited for.
        constexpr std::size_t kAheadMax = 256;
        std::size_t asked = 0;
        for (std::size_t i = 0; i < reads.size(); ++i) {
            for (; asked < std::min(reads.size(), i + kAheadMax); ++asked) {
                ::posix_fadvise(fd_, static_cast<off_t>(base_ + reads[asked].offset),
                                static_cast<off_t>(reads[asked].into.size()), POSIX_FADV_WILLNEED);
            }
            PENSTOCK_CHECK(read(reads[i].offset, reads[i].into));
        }
        return {};
    }

private:
    int fd_;
    std::uint64_t base_;
    std::uint64_t size_ = 0;
};

std::span<const std::byte> span_of(const nb::bytes& bytes) {
    return std::as_bytes(std::span(bytes.c_str(), bytes.size()));
}

// What a file is, whoever has its bytes: a descriptor, or bytes themselves.
template <typename Read>
auto with_source(nb::handle file, std::uint64_t base, Read read) {
    if (PyBytes_Check(file.ptr())) {
        const auto bytes = span_of(nb::cast<nb::bytes>(file));
        const WithoutGil nogil;
        format::MemorySource source(bytes);
        return read(source);
    }
    const int fd = nb::cast<int>(file);
    const WithoutGil nogil;
    DescriptorSource source(fd, base);
    return read(source);
}

// What a format finds wrong with a file is the file's fault.
template <typename T>
T unwrap_of_file(format::Result<T>&& result, const std::string& path) {
    if (!result) {
        base::Error error = std::move(result.error());
        if (error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kEndOfFile) {
            error.code = ErrorCode::kDamaged;
        }
        error.path = path;
        base::raise(error);
    }
    if constexpr (!std::is_void_v<T>) {
        return std::move(*result);
    }
}

void save(FileImageObject& self, nb::handle to, nb::handle progress) {
    const std::string path = path_bytes(to, "path", "");
    const std::shared_ptr<Engine> engine = opened(default_engine());
    run_with_progress(progress, [&](const Progress& report) {
        state::save_file(*engine, FileSystem::local(), path, self.image, report);
    });
}

void save_index(nb::handle to, nb::handle tensors, nb::handle metadata, std::uint64_t shard_bytes,
                nb::handle progress) {
    const std::string path = path_bytes(to, "path", "");
    TensorRows rows = rows_of(tensors, metadata);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    run_with_progress(progress, [&](const Progress& report) {
        state::save_index(*engine, FileSystem::local(), path, std::move(rows.named),
                          {.shard_bytes = shard_bytes, .progress = report});
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

// A file that somebody else writes, by the name of its temporary file.
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

struct PtFile {
    format::torch_file::File file;
};

PtFile read_pt(nb::handle file, nb::handle name, std::uint64_t base) {
    const std::string path = path_bytes(name, "path", "");
    return with_source(file, base, [&](format::ByteSource& source) {
        return PtFile{unwrap_of_file(format::torch_file::read(source), path)};
    });
}

struct SafetensorsFile {
    format::safetensors::Header header;
    std::optional<state::SumTable> table;
};

SafetensorsFile read_safetensors(nb::handle file, nb::handle name, std::uint64_t base) {
    const std::string path = path_bytes(name, "path", "");
    return with_source(file, base, [&](format::ByteSource& source) {
        const auto form =
            unwrap_of_file(format::form_of(source, path.ends_with(".safetensors")), path);
        if (form == format::FileForm::kIndex) {
            unwrap_of_file<void>(format::fault("load", "it is text, JSON as it seems"), path);
        }
        std::vector<std::byte> head(std::min<std::uint64_t>(8, source.size()));
        base::unwrap(source.read(0, head));
        head.resize(8 +
                    unwrap_of_file(format::safetensors::header_bytes(head, source.size()), path));
        base::unwrap(source.read(0, head));
        SafetensorsFile out;
        out.header = unwrap_of_file(format::safetensors::read_header(head, source.size()), path);
        out.table = state::parse_sum_table(out.header, path);
        return out;
    });
}

// (name, type, shape, begin, end) each, offsets in the file.
nb::list tensors_of(const SafetensorsFile& self) {
    nb::list out;
    for (const auto& t : self.header.tensors) {
        out.append(nb::make_tuple(t.name, std::string(format::safetensors::name_of(t.type)),
                                  nb::cast(t.shape), self.header.data_begin + t.begin,
                                  self.header.data_begin + t.end));
    }
    return out;
}

nb::dict metadata_of(const SafetensorsFile& self) {
    nb::dict out;
    for (const auto& [key, value] : self.header.metadata) {
        out[nb::cast(key)] = nb::cast(value);
    }
    return out;
}

// Whole pieces of a tensor and their sums; those of an end that lies inside a piece stay unchecked.
void find_sums(stream::Wanted& wanted, std::size_t tensor, const SafetensorsFile& file) {
    const auto& t = file.header.tensors.at(tensor);
    const std::uint64_t piece_bytes = file.table->piece_bytes;
    const std::uint64_t at = wanted.offset - file.header.data_begin - t.begin;
    const std::uint64_t end = at + wanted.into.size();
    if (at % piece_bytes != 0 || (end % piece_bytes != 0 && end != t.end - t.begin)) {
        return;
    }
    wanted.piece_bytes = piece_bytes;
    wanted.sums = std::span(file.table->sums)
                      .subspan(file.table->first[tensor] + at / piece_bytes,
                               (wanted.into.size() + piece_bytes - 1) / piece_bytes);
}

// `rows`: (offset, address, bytes, CRC or 0, tensor or -1) each. What is wrong with one of them:
// (its number, offset, bytes, expected, found), or None.
nb::object read_rows(nb::handle file, nb::list rows, const SafetensorsFile* sums, bool fresh,
                     nb::handle progress) {
    std::vector<stream::Wanted> wanted;
    wanted.reserve(nb::len(rows));
    for (const nb::handle row : rows) {
        stream::Wanted w;
        w.offset = nb::cast<std::uint64_t>(row[0]);
        w.into = {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(row[1])),
                  nb::cast<std::size_t>(row[2])};
        w.crc = nb::cast<std::uint32_t>(row[3]);
        const auto tensor = nb::cast<std::int64_t>(row[4]);
        if (sums != nullptr && sums->table && tensor >= 0 && !w.into.empty()) {
            find_sums(w, static_cast<std::size_t>(tensor), *sums);
        }
        wanted.push_back(w);
    }
    std::optional<stream::WrongSum> wrong;
    if (PyBytes_Check(file.ptr())) {
        const auto bytes = span_of(nb::cast<nb::bytes>(file));
        const WithoutGil nogil;
        for (const stream::Wanted& w : wanted) {
            PENSTOCK_ASSERT(w.offset <= bytes.size() && w.into.size() <= bytes.size() - w.offset);
            std::copy_n(bytes.data() + w.offset, w.into.size(), w.into.data());
        }
        wrong = stream::check_sums(wanted);
    } else {
        const File open = nb::cast<const FileObject&>(file).file;
        const std::shared_ptr<Engine> engine = opened(default_engine());
        run_with_progress(progress, [&](const Progress& report) {
            wrong = stream::read_file(*engine, open, wanted, {.fresh = fresh}, report);
        });
    }
    if (!wrong) {
        return nb::none();
    }
    return nb::make_tuple(wrong->wanted, wrong->offset, wrong->bytes, wrong->expected,
                          wrong->found);
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
             "Puts it under a path, whole, durable and atomic. progress: (done, total) in bytes.")
        .def("write_to", write_to, nb::arg("write"), nb::arg("progress").none() = nb::none());
    nb::class_<PtFile>(m, "PtFile")
        .def_prop_ro(
            "legacy",
            [](const PtFile& f) { return f.file.form == format::torch_file::Form::kLegacy; })
        .def_prop_ro(
            "storages",
            [](const PtFile& f) {
                nb::list out;
                for (std::size_t i = 0; i < f.file.storages.size(); ++i) {
                    const auto& s = f.file.storages[i];
                    out.append(
                        nb::make_tuple(s.offset, s.bytes, f.file.tree.storages[i].location, s.crc));
                }
                return out;
            },
            "(offset, bytes, location, crc) each")
        .def(
            "objects", [](const PtFile& f, nb::handle s) { return objects_of(f.file.tree, s); },
            nb::arg("storages"));
    nb::class_<FreshObject>(m, "FreshMemory")
        .def(nb::init<nb::handle>(), nb::arg("stretches"),
             "stretches: (offset in the file, bytes) each.")
        .def("address", &FreshObject::address, nb::arg("stretch"))
        .def("part", &FreshObject::part, nb::arg("stretch"));
    m.def("image_of_state", image_of_state, nb::arg("object").none(), nb::arg("folder"));
    m.def("image_of_tensors", image_of_tensors, nb::arg("tensors"), nb::arg("metadata"),
          nb::arg("checksums") = true);
    m.def("save_index", save_index, nb::arg("path"), nb::arg("tensors"), nb::arg("metadata"),
          nb::arg("shard_bytes"), nb::arg("progress").none());
    nb::class_<SafetensorsFile>(m, "SafetensorsFile")
        .def_prop_ro("tensors", tensors_of, "(name, type, shape, begin, end) each")
        .def_prop_ro("metadata", metadata_of)
        .def_prop_ro("piece_bytes",
                     [](const SafetensorsFile& f) { return f.table ? f.table->piece_bytes : 0; });
    m.def("read_pt", read_pt, nb::arg("file"), nb::arg("path"), nb::arg("base") = 0,
          "file: a descriptor, or bytes.");
    m.def("read_safetensors", read_safetensors, nb::arg("file"), nb::arg("path"),
          nb::arg("base") = 0);
    m.def("read_rows", read_rows, nb::arg("file"), nb::arg("rows"), nb::arg("sums").none(),
          nb::arg("fresh"), nb::arg("progress").none());
    m.def(
        "parse_shard_index",
        [](const nb::bytes& text, nb::handle path) {
            return unwrap_of_file(format::parse_shard_index({text.c_str(), text.size()}),
                                  path_bytes(path, "path", ""))
                .weight_map;
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
