// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"
#include "base/text/units.hpp"
#include "bind.hpp"
#include "borrowed_memory.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "request.hpp"

#include <penstock/engine.hpp>
#include <penstock/memory.hpp>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace penstock::python {

std::string path_bytes(nb::handle path, const char* argument, const char* others) {
    PyObject* encoded = nullptr;
    if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) {
        const bool has_null = PyErr_ExceptionMatches(PyExc_ValueError) != 0;
        if (!has_null && PyErr_ExceptionMatches(PyExc_TypeError) == 0) {
            throw nb::python_error();
        }
        PyErr_Clear();
        if (has_null) {
            raise_value(std::string(argument) +
                        ": a path has no null bytes, and this one has; give the path of a file");
        }
        raise_type(std::string(argument) + ": got " + type_text(path) +
                   "; give a path (str, bytes, os.PathLike)" + others);
    }
    const nb::object owner = nb::steal(encoded);
    char* data = nullptr;
    Py_ssize_t length = 0;
    if (PyBytes_AsStringAndSize(encoded, &data, &length) != 0) {
        throw nb::python_error();
    }
    return {data, static_cast<std::size_t>(length)};
}

namespace {

// The largest that the kernel knows (loff_t).
constexpr std::uint64_t kFileBytesMax = INT64_MAX;

Access access_of(const std::string& mode) {
    if (mode == "r") {
        return Access::kRead;
    }
    if (mode == "w" || mode == "a") {
        return Access::kWrite;
    }
    if (mode == "rw") {
        return Access::kReadWrite;
    }
    raise_value("mode: " + quoted(mode) + " is not a mode; expected 'r', 'w', 'rw' or 'a'");
}

const char* mode_of(Access access, bool append) {
    if (append) {
        return "a";
    }
    switch (access) {
        case Access::kRead:
            return "r";
        case Access::kWrite:
            return "w";
        case Access::kReadWrite:
            return "rw";
    }
    return "";
}

void open_file(FileObject* self, nb::handle path, nb::handle mode, nb::handle truncate_flag,
               nb::handle cache, nb::handle buffer) {
    FileObject opened;
    opened.path = path_bytes(path, "path");
    const std::string word = word_of(mode, "mode");
    opened.access = access_of(word);
    opened.append = word == "a";
    const std::uint64_t buffer_bytes = size_of(buffer, "buffer", "bytes", kAppendBufferMax);
    if (buffer_bytes != 0 && !opened.append) {
        raise_value("buffer: it gathers what append() writes; use mode 'a'");
    }
    const bool truncate = flag_of(truncate_flag, "truncate");
    if (truncate && opened.access == Access::kRead) {
        raise_value(
            "truncate: a file that is opened for reading cannot be cut; use mode 'w' or 'rw'");
    }
    const FileOptions options{.access = opened.access,
                              .create = opened.access != Access::kRead,
                              .exclusive = false,
                              .truncate = truncate,
                              .cache = cache_policy_of(cache),
                              .append = opened.append,
                              .buffer_bytes = buffer_bytes};
    {
        const nb::gil_scoped_release nogil;
        opened.file = File(opened.path, options);
    }
    new (self) FileObject(std::move(opened));
}

const File& opened(const FileObject& self) {
    if (!self.file.is_open()) {
        raise_value("file: '" + self.path + "' is closed; open it again");
    }
    return self.file;
}

// A call that may block, on a share of its own.
template <typename Call>
auto outside(const FileObject& self, Call call) {
    File file = opened(self);
    const nb::gil_scoped_release nogil;
    return call(file);
}

void close_file(FileObject& self) {
    File file = std::exchange(self.file, File());
    const nb::gil_scoped_release nogil;
    file.close();
}

std::uint64_t append_to(const FileObject& self, nb::handle data) {
    if (!self.append) {
        raise_value("append: '" + self.path + "' is open with mode '" +
                    mode_of(self.access, false) + "'; open it with 'a'");
    }
    const BorrowedMemory memory = borrow(data, "data", false);
    outside(self, [&](File& file) { file.append({memory.data, memory.bytes}); });
    return memory.bytes;
}

nb::object represent_file(const FileObject& self) {
    return path_object("<penstock.File '" + self.path + "' " + mode_of(self.access, self.append) +
                       (self.file.is_open() ? ">" : ", closed>"));
}

void bind_info(nb::module_& m) {
    nb::class_<FileInfo>(m, "FileInfo",
                         "The description of an open file. Alignments are in bytes, 1 = none "
                         "required; Penstock meets\n"
                         "them by itself.")
        .def_prop_ro(
            "path", [](const FileInfo& i) { return path_object(i.path); },
            nb::sig("def path(self) -> str"))
        .def_prop_ro("mode", [](const FileInfo& i) { return mode_of(i.access, i.append); })
        .def_ro("file_system", &FileInfo::file_system,
                "'ext4', 'xfs', 'tmpfs', 'block device', ...")
        .def_prop_ro("device_major", [](const FileInfo& info) { return info.device.major; })
        .def_prop_ro("device_minor", [](const FileInfo& info) { return info.device.minor; })
        .def_ro("is_block_device", &FileInfo::is_block_device)
        .def_ro("direct", &FileInfo::direct, "Whether I/O bypasses the page cache.")
        .def_ro("memory_align", &FileInfo::memory_align)
        .def_ro("read_align", &FileInfo::read_align)
        .def_ro("write_align", &FileInfo::write_align)
        .def_ro("block_bytes", &FileInfo::block_bytes, "Block of the file system.")
        .def_ro("reason", &FileInfo::reason,
                "How the alignments were learnt, or why I/O is not direct.")
        .def_ro("buffer_bytes", &FileInfo::buffer_bytes,
                "Mode 'a': bytes that are gathered at most.")
        .def_prop_ro(
            "cache", [](const FileInfo& i) { return name_of(i.cache); }, "As it was opened.")
        .def_ro("page_cache", &FileInfo::page_cache, "How reads use the page cache, and why.")
        .def(
            "__repr__",
            [](const FileInfo& i) {
                return path_object("FileInfo(path='" + i.path + "', file_system='" + i.file_system +
                                   "', direct=" + (i.direct ? "True" : "False") + ", reason='" +
                                   i.reason + "')");
            },
            nb::sig("def __repr__(self) -> str"));
}

template <auto kAct>
void act_on_pages(nb::handle path, nb::handle offset, nb::handle bytes) {
    const std::string name = path_bytes(path, "path");
    const std::uint64_t begin = count_of(offset, "offset", "bytes", kFileBytesMax);
    std::optional<std::uint64_t> length;
    if (!bytes.is_none()) {
        length = count_of(bytes, "bytes", "bytes", kFileBytesMax);
    }
    const nb::gil_scoped_release nogil;
    kAct(name, begin, length);
}

void bind_page_cache(nb::module_& m) {
    m.def(
        "prefetch", act_on_pages<prefetch>, nb::arg("path").none(), nb::arg("offset").none() = 0,
        nb::arg("bytes") = nb::none(),
        nb::sig("def prefetch(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], "
                "offset: int = 0, bytes: int | None = None) -> None"),
        "Asks the kernel to read `bytes` bytes of a file from `offset` on (None: to its end) into "
        "the page cache.\n\n"
        "Returns when it has been asked for all of them: the last are still being read, and a "
        "kernel that is\n"
        "short of memory leaves some out. Thread-safe.");
    m.def("evict", act_on_pages<evict>, nb::arg("path").none(), nb::arg("offset").none() = 0,
          nb::arg("bytes") = nb::none(),
          nb::sig("def evict(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], "
                  "offset: int = 0, bytes: int | None = None) -> None"),
          "Writes what is dirty in a file to its device, then drops those pages of the range that "
          "nobody has\n"
          "mapped or locked from the page cache. Thread-safe.");
}

}  // namespace

void bind_file(nb::module_& m) {
    bind_page_cache(m);
    bind_info(m);
    nb::class_<FileObject>(
        m, "File",
        "An open file or block device, for as many transfers as one likes.\n\n"
        "mode: 'r', 'w', 'rw', or 'a' for append() alone; all but 'r' make the "
        "file (0666 less umask) when it is not there.\n"
        "Nothing is cut unless truncate=True. cache: 'direct' and 'auto' go past the page "
        "cache where the file system can,\n"
        "'required' is an error where it cannot, 'cached' goes through it, as 'a' "
        "does always. buffer: with 'a', so many bytes\n"
        "(a number, or '1MiB'; at most 1 GiB) are gathered before they are "
        "written, and lost when the process dies before\n"
        "flush(), sync() or close(). Thread-safe.")
        .def(
            "__init__", open_file, nb::arg("path").none(), nb::arg("mode").none() = "r",
            nb::arg("truncate").none() = false, nb::kw_only(), nb::arg("cache").none() = "auto",
            nb::arg("buffer").none() = 0,
            nb::sig("def __init__(self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes], "
                    "mode: typing.Literal['r', 'w', 'rw', 'a'] = 'r', truncate: bool = False, *, "
                    "cache: typing.Literal['auto', 'cached', 'direct', 'required'] = 'auto', "
                    "buffer: int | str = 0) -> None"))
        .def_prop_ro(
            "path", [](const FileObject& f) { return path_object(f.path); },
            nb::sig("def path(self) -> str"))
        .def_prop_ro("mode", [](const FileObject& f) { return mode_of(f.access, f.append); })
        .def_prop_ro("closed", [](const FileObject& f) { return !f.file.is_open(); })
        .def_prop_ro(
            "size",
            [](const FileObject& f) { return outside(f, [](File& file) { return file.size(); }); },
            "Bytes, now.")
        .def_prop_ro("info", [](const FileObject& f) { return opened(f).info(); })
        .def(
            "truncate",
            [](const FileObject& f, nb::handle size) {
                const std::uint64_t bytes = count_of(size, "size", "bytes", kFileBytesMax);
                outside(f, [bytes](File& file) { file.truncate(bytes); });
            },
            nb::arg("size").none(), nb::sig("def truncate(self, size: int) -> None"),
            "Cuts the file to so many bytes, or extends it with zeros.")
        .def(
            "preallocate",
            [](const FileObject& f, nb::handle offset, nb::handle size) {
                const std::uint64_t begin = count_of(offset, "offset", "bytes", kFileBytesMax);
                const std::uint64_t bytes = count_of(size, "size", "bytes", kFileBytesMax - begin);
                return outside(f, [=](File& file) { return file.preallocate(begin, bytes); });
            },
            nb::arg("offset").none(), nb::arg("size").none(),
            nb::sig("def preallocate(self, offset: int, size: int) -> bool"),
            "Gives [offset, offset + size) room on the device, and the file that size. False where "
            "the file\n"
            "system cannot, which is normal.")
        .def("append", append_to, nb::arg("data").none(),
             nb::sig("def append(self, data: object) -> int"),
             "Puts the bytes of `data` at the end of a file that is open with mode 'a', whole, and "
             "gives their number.\n\n"
             "Several processes may append so at the same time: records come one after the other. "
             "Without a buffer every\n"
             "reader sees the record when this returns, and it survives the death of the process. "
             "Thread-safe.")
        .def(
            "flush", [](const FileObject& f) { outside(f, [](File& file) { file.flush(); }); },
            "Writes what append() has gathered. After an error the next flush goes on where this "
            "one stopped.")
        .def_prop_ro(
            "buffered_bytes",
            [](const FileObject& f) {
                return outside(f, [](File& file) { return file.buffered_bytes(); });
            },
            "Bytes that append() has gathered and not written yet.")
        .def(
            "sync", [](const FileObject& f) { outside(f, [](File& file) { file.sync(); }); },
            "Data, size and name survive a power cut from here on.")
        .def("close", close_file,
             "Says what closing said, or that what append() gathered could not be written and is "
             "lost. Transfers under way on the\n"
             "file go on. Calling it again is fine.")
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> File"))
        .def(
            "__exit__", [](FileObject& f, nb::args) { close_file(f); },
            nb::sig("def __exit__(self, *exc: object) -> None"))
        .def(
            "__reduce__", [](nb::handle) { cannot_pickle("File", "its path"); },
            nb::sig("def __reduce__(self) -> str"))
        .def("__repr__", represent_file, nb::sig("def __repr__(self) -> str"));
}

}  // namespace penstock::python
