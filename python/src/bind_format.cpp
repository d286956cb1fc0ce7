// SPDX-License-Identifier: Apache-2.0
// Files of formats for penstock/_state.py: made of objects, written by the engine; read, and
// made into objects. Private: what users see is save(), load() and inspect().
#include "base/raise.hpp"
#include "bind.hpp"
#include "checkpoint/file_writer.hpp"
#include "engine_object.hpp"
#include "file_image_object.hpp"
#include "format/crc32.hpp"
#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "format/torch_file.hpp"
#include "names.hpp"
#include "progress.hpp"
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

void save(FileImageObject& self, const std::string& path, nb::handle progress) {
    const std::shared_ptr<Engine> engine = opened(default_engine());
    run_with_progress(progress, [&](const Progress& told) {
        checkpoint::save_file(*engine, FileSystem::local(), path, self.image, told);
    });
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
    nb::class_<FileImageObject>(m, "FileImage")
        .def_prop_ro("total_bytes",
                     [](const FileImageObject& f) { return f.image.file().total_bytes(); })
        .def_prop_ro("payload_bytes",
                     [](const FileImageObject& f) { return f.image.payload_bytes(); })
        .def("save", save, nb::arg("path"), nb::arg("progress").none() = nb::none(),
             "Puts it under a path, whole, durable and atomic. progress: (done, total) in bytes.");
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
    m.def("image_of_state", image_of_state, nb::arg("object").none(), nb::arg("folder"));
    m.def("image_of_tensors", image_of_tensors, nb::arg("tensors"), nb::arg("metadata"),
          nb::arg("checksums") = true);
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
