// SPDX-License-Identifier: Apache-2.0
// Files of formats for penstock/_checkpoint.py: made of objects, written by the engine; read, and
// made into objects. Private: what users see is save(), load() and inspect().
#include "base/raise.hpp"
#include "bind.hpp"
#include "engine_object.hpp"
#include "format/crc32.hpp"
#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "format/torch_file.hpp"
#include "names.hpp"
#include "state.hpp"
#include "without_gil.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock::python {

namespace {

constexpr std::size_t kCrcPieceBytes = std::size_t{4} << 20;
constexpr std::array<std::byte, 4096> kZeros{};

// A file by its descriptor, for the few small reads that a format asks for.
class DescriptorSource final : public format::ByteSource {
public:
    explicit DescriptorSource(int fd) : fd_(fd) {
        struct stat info {};
        size_ = ::fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
    }
    [[nodiscard]] std::uint64_t size() const override { return size_; }
    [[nodiscard]] format::Result<void> read(std::uint64_t offset,
                                            std::span<std::byte> into) override {
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

private:
    int fd_;
    std::uint64_t size_ = 0;
};

// A file about to be written: its pieces and the memory of its payloads.
struct NewFile {
    std::optional<format::torch_file::Layout> pt;
    std::optional<format::safetensors::Layout> safetensors;
    std::vector<StorageMemory> payloads;

    [[nodiscard]] const format::FileLayout& file() const {
        return pt ? pt->file() : safetensors->file();
    }
};

// The CRC of each payload, on all cores: pieces in any order, put together at the end.
std::vector<std::uint32_t> crcs_of(const std::vector<StorageMemory>& payloads) {
    struct Part {
        const std::byte* data;
        std::size_t bytes;
        std::uint32_t crc;
    };
    std::vector<Part> parts;
    std::size_t total = 0;
    for (const StorageMemory& p : payloads) {
        for (std::size_t at = 0; at < p.bytes; at += kCrcPieceBytes) {
            parts.push_back({p.data + at, std::min(kCrcPieceBytes, p.bytes - at), 0});
            total += parts.back().bytes;
        }
    }
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
        for (std::size_t i = next++; i < parts.size(); i = next++) {
            parts[i].crc = format::crc32({parts[i].data, parts[i].bytes});
        }
    };
    const std::size_t threads =
        total < 2 * kCrcPieceBytes ? 1 : std::max(1U, std::thread::hardware_concurrency());
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < std::min(threads, parts.size()); ++i) {
        others.emplace_back(work);
    }
    work();
    for (std::thread& thread : others) {
        thread.join();
    }
    std::vector<std::uint32_t> out;
    std::size_t part = 0;
    for (const StorageMemory& p : payloads) {
        std::uint32_t crc = 0;
        for (std::size_t at = 0; at < p.bytes; at += kCrcPieceBytes, ++part) {
            crc = format::crc32_combine(crc, parts[part].crc, parts[part].bytes);
        }
        out.push_back(crc);
    }
    return out;
}

NewFile make_pt(nb::handle object, const std::string& folder) {
    State state = state_of(object);
    NewFile out;
    out.payloads = std::move(state.storages);
    const WithoutGil nogil;
    out.pt = base::unwrap(format::torch_file::Layout::make(state.tree, folder));
    return out;
}

// `tensors`: (name, type as the format spells it, shape, address, owner) each.
NewFile make_safetensors(nb::handle tensors,
                         std::vector<std::pair<std::string, std::string>> metadata) {
    NewFile out;
    std::vector<format::safetensors::Tensor> list;
    for (const nb::handle row : nb::iter(tensors)) {
        format::safetensors::Tensor t;
        t.name = nb::cast<std::string>(row[0]);
        const auto type = format::safetensors::type_named(nb::cast<std::string>(row[1]));
        if (!type) {
            raise_value("save: tensor '" + t.name + "': the format has no such type");
        }
        t.type = *type;
        t.shape = nb::cast<std::vector<std::uint64_t>>(row[2]);
        const auto bytes = format::safetensors::bytes_of(t.type, t.shape);
        out.payloads.push_back({reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(row[3])),
                                static_cast<std::size_t>(bytes.value_or(0)), nb::borrow(row[4])});
        list.push_back(std::move(t));
    }
    out.safetensors = base::unwrap(format::safetensors::Layout::make(std::move(list), metadata));
    return out;
}

TransferRequest request_of(const NewFile& file, const std::string& path) {
    TransferRequest request;
    request.write = true;
    request.paths = {path};
    request.options.sync = true;
    const std::string_view literals = file.file().literals();
    for (const format::Piece& piece : file.file().pieces()) {
        const void* memory = nullptr;
        if (piece.kind == format::Piece::Kind::kPayload) {
            memory = file.payloads[piece.source].data;
        } else if (piece.kind == format::Piece::Kind::kLiteral) {
            memory = literals.data() + piece.source;
        } else {
            PENSTOCK_ASSERT(piece.bytes <= kZeros.size());
            memory = kZeros.data();
        }
        request.extents.push_back({piece.offset, piece.bytes, const_cast<void*>(memory), 0});
    }
    return request;
}

// One transfer of all pieces, which adjoin: the engine cuts them into blocks of the device.
void write_file(NewFile& file, const std::string& path) {
    const std::shared_ptr<Engine> engine = opened(default_engine());
    Transfer transfer;
    {
        const WithoutGil nogil;
        if (file.pt) {
            const std::vector<std::uint32_t> crcs = crcs_of(file.payloads);
            for (std::size_t i = 0; i < crcs.size(); ++i) {
                file.pt->set_crc(i, crcs[i]);
            }
        }
        transfer = engine->submit(request_of(file, path));
    }
    bool interrupted = false;
    while (true) {
        bool done = false;
        {
            const WithoutGil nogil;
            try {
                done = transfer.wait_for(kSignalSlice).has_value();
            } catch (const Error&) {
                if (!interrupted) {
                    throw;
                }
                done = true;
            }
        }
        if (done) {
            break;
        }
        if (!interrupted && PyErr_CheckSignals() != 0) {
            interrupted = true;
            transfer.cancel();
        }
    }
    if (interrupted) {
        throw nb::python_error();
    }
}

struct PtFile {
    format::torch_file::File file;
};

PtFile read_pt(int fd, bool check_crcs) {
    const WithoutGil nogil;
    DescriptorSource source(fd);
    return PtFile{base::unwrap(format::torch_file::read(source, check_crcs))};
}

// (name, type, shape, begin, end) each, offsets in the file; the metadata.
nb::object read_safetensors(int fd) {
    DescriptorSource source(fd);
    std::vector<std::byte> head(std::min<std::uint64_t>(8, source.size()));
    base::unwrap(source.read(0, head));
    head.resize(8 + base::unwrap(format::safetensors::header_bytes(head, source.size())));
    base::unwrap(source.read(0, head));
    const auto header = base::unwrap(format::safetensors::read_header(head, source.size()));
    nb::list tensors;
    for (const auto& t : header.tensors) {
        tensors.append(nb::make_tuple(t.name, std::string(format::safetensors::name_of(t.type)),
                                      nb::cast(t.shape), header.data_begin + t.begin,
                                      header.data_begin + t.end));
    }
    nb::dict metadata;
    for (const auto& [key, value] : header.metadata) {
        metadata[nb::cast(key)] = nb::cast(value);
    }
    return nb::make_tuple(tensors, metadata);
}

}  // namespace

void bind_format(nb::module_& parent) {
    nb::module_ m = parent.def_submodule("_format", "Formats of checkpoints; private.");
    nb::class_<NewFile>(m, "NewFile")
        .def_prop_ro("total_bytes", [](const NewFile& f) { return f.file().total_bytes(); })
        .def_prop_ro("payload_bytes",
                     [](const NewFile& f) {
                         std::uint64_t total = 0;
                         for (const StorageMemory& p : f.payloads) {
                             total += p.bytes;
                         }
                         return total;
                     })
        .def(
            "write", write_file, nb::arg("path"),
            "Writes all of it to a file that is new or empty, durably (the file, not its folder).");
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
    m.def("make_pt", make_pt, nb::arg("object").none(), nb::arg("folder"));
    m.def("make_safetensors", make_safetensors, nb::arg("tensors"), nb::arg("metadata"));
    m.def("read_pt", read_pt, nb::arg("fd"), nb::arg("check_crcs") = false);
    m.def("read_safetensors", read_safetensors, nb::arg("fd"));
    m.def(
        "parse_shard_index",
        [](const nb::bytes& text) {
            return base::unwrap(format::parse_shard_index({text.c_str(), text.size()})).weight_map;
        },
        nb::arg("json"), "(tensor, file) each");
    m.def(
        "crc32",
        [](std::uintptr_t address, std::size_t bytes) {
            const WithoutGil nogil;
            return crcs_of({{reinterpret_cast<std::byte*>(address), bytes, {}}})[0];
        },
        nb::arg("address"), nb::arg("bytes"));
}

}  // namespace penstock::python
