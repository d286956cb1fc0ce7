// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"
#include "bind.hpp"
#include "borrowed_memory.hpp"
#include "buffer_object.hpp"
#include "dlpack_abi.hpp"
#include "fill_targets.hpp"
#include "names.hpp"
#include "writable.hpp"

#include <penstock/memory.hpp>

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace penstock::python {

namespace {

// They outlive the interpreter: buffers may still be in use when it ends.
MemoryPool& pool(bool pinned) {
    static auto* const plain = new MemoryPool(MemoryOptions{.lock = false});
    static auto* const locked = new MemoryPool(MemoryOptions{.lock = true});
    return pinned ? *locked : *plain;
}

std::int64_t dimension(nb::handle value) {
    return static_cast<std::int64_t>(count_of(value, "shape", "elements", INT64_MAX));
}

// A number, or whatever has some: a list, a tuple, a torch.Size, an array.
std::vector<std::int64_t> dimensions(nb::handle shape) {
    PyObject* extents = PySequence_Tuple(shape.ptr());
    if (extents == nullptr) {
        PyErr_Clear();
        return {dimension(shape)};
    }
    std::vector<std::int64_t> out;
    for (const nb::handle extent : nb::steal<nb::tuple>(extents)) {
        out.push_back(dimension(extent));
    }
    return out;
}

std::uint64_t count_bytes(const BufferObject& buffer) {
    auto bytes = std::uint64_t{buffer.type->bits} / 8;
    for (const std::int64_t extent : buffer.shape) {
        if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes) ||
            bytes > PY_SSIZE_T_MAX) {
            raise_value("shape: it has more bytes than an address space");
        }
    }
    return bytes;
}

void set_strides(BufferObject& buffer) {
    buffer.strides_bytes.resize(buffer.shape.size());
    Py_ssize_t stride = buffer.type->bits / 8;
    for (std::size_t i = buffer.shape.size(); i-- > 0;) {
        buffer.strides_bytes[i] = stride;
        stride *= static_cast<Py_ssize_t>(buffer.shape[i]);
    }
}

BufferObject empty(nb::handle shape, nb::handle dtype, nb::handle is_pinned) {
    const bool pinned = flag_of(is_pinned, "pinned");
    BufferObject out;
    out.type = &element_type(dtype);
    out.shape = dimensions(shape);
    out.bytes = count_bytes(out);
    set_strides(out);
    auto memory = std::make_shared<Buffer>();
    {
        const nb::gil_scoped_release nogil;
        *memory = pool(pinned).take(out.bytes);
    }
    out.data = memory->data();
    out.pinned = pinned && memory->locked();
    if (!out.pinned) {
        out.pinned_reason = !pinned          ? "it was not asked for (pinned=False)"
                            : out.bytes == 0 ? "there is nothing to pin"
                                             : memory->shortfall();
    }
    out.owner = std::move(memory);
    return out;
}

BufferObject as_bytes(nb::handle tensor) {
    BufferObject out;
    if (nb::isinstance<BufferObject>(tensor)) {
        out = *nb::inst_ptr<BufferObject>(tensor);
    } else {
        BorrowedMemory memory = borrow(tensor, "tensor", false);
        out.data = memory.data;
        out.bytes = memory.bytes;
        out.readonly = memory.readonly;
        out.pinned_reason = "it is memory of another object";
        out.owner = share_of(std::move(memory.keep));
    }
    out.type = &byte_type();
    out.shape = {static_cast<std::int64_t>(out.bytes)};
    set_strides(out);
    return out;
}

BufferObject copy_of(const BufferObject& buffer) {
    BufferObject out = buffer;
    auto memory = std::make_shared<Buffer>();
    {
        const nb::gil_scoped_release nogil;
        *memory = pool(false).take(buffer.bytes);
        if (buffer.bytes != 0) {
            std::memcpy(memory->data(), buffer.data, buffer.bytes);
        }
    }
    out.data = memory->data();
    out.readonly = false;
    out.owner = std::move(memory);
    return out;
}

nb::object dlpack_of(const BufferObject& buffer, nb::handle stream, nb::handle max_version,
                     nb::handle dl_device, nb::handle copy) {
    if (!stream.is_none()) {
        raise_value("stream: this is host memory; leave it None");
    }
    if (!dl_device.is_none()) {
        const nb::object type = checked(PyNumber_Long(nb::object(dl_device[0]).ptr()));
        if (nb::cast<int>(type) != dlpack::kCpu) {
            raise_value("dl_device: this is host memory, and there it stays");
        }
    }
    const bool versioned = !max_version.is_none() && nb::cast<int>(nb::object(max_version[0])) >= 1;
    const bool copied = !copy.is_none() && truth(copy);
    return export_capsule(copied ? copy_of(buffer) : buffer, versioned, copied);
}

std::string represent_buffer(const BufferObject& buffer) {
    std::string shape;
    for (const std::int64_t extent : buffer.shape) {
        shape += (shape.empty() ? "" : ", ") + std::to_string(extent);
    }
    return "penstock.Buffer(shape=(" + shape + (buffer.shape.size() == 1 ? ",)" : ")") +
           ", dtype='" + buffer.type->torch + "', pinned=" + (buffer.pinned ? "True" : "False") +
           ")";
}

nb::object adapter(const char* name, nb::handle self) {
    return nb::module_::import_("penstock._base.arrays").attr(name)(self);
}

}  // namespace

void bind_memory(nb::module_& m) {
    nb::class_<BufferObject>(
        m, "Buffer", nb::is_weak_referenceable(), nb::type_slots(buffer_slots()),
        "A shaped piece of host memory: DLPack, buffer protocol, numpy() and torch().\n\n"
        "Made by empty() and as_bytes(). It gives its memory away without copying and keeps it for "
        "as long as\n"
        "anybody has a share.")
        .def_prop_ro(
            "shape",
            [](const BufferObject& b) {
                nb::list list;
                for (const std::int64_t extent : b.shape) {
                    list.append(extent);
                }
                return nb::tuple(list);
            },
            nb::sig("def shape(self) -> tuple[int, ...]"))
        .def_prop_ro(
            "dtype", [](const BufferObject& b) { return b.type->torch; }, "Its name: 'float32'.")
        .def_ro("nbytes", &BufferObject::bytes)
        .def_ro("readonly", &BufferObject::readonly)
        .def_ro("pinned", &BufferObject::pinned, "Whether the memory is locked (mlock).")
        .def_ro("pinned_reason", &BufferObject::pinned_reason,
                "Why it is not pinned, and what to do about it; empty when it is.")
        .def(
            "numpy", [](nb::handle self) { return adapter("to_numpy", self); },
            nb::sig("def numpy(self) -> numpy.typing.NDArray[typing.Any]"),
            "A numpy.ndarray on the same memory. Types that NumPy lacks (bfloat16, float8) need "
            "ml_dtypes.")
        .def(
            "torch", [](nb::handle self) { return adapter("to_torch", self); },
            nb::sig("def torch(self) -> typing.Any"), "A torch.Tensor on the same memory.")
        .def("__dlpack__", dlpack_of, nb::kw_only(), nb::arg("stream") = nb::none(),
             nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(),
             nb::arg("copy") = nb::none(),
             nb::sig("def __dlpack__(self, *, stream: None = None, max_version: tuple[int, int] | "
                     "None = None, "
                     "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> "
                     "typing.Any"))
        .def(
            "__dlpack_device__",
            [](const BufferObject&) { return nb::make_tuple(dlpack::kCpu, 0); },
            nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
        .def("__len__",
             [](const BufferObject& b) {
                 if (b.shape.empty()) {
                     raise_type(
                         "a Buffer without dimensions has no length; nbytes says how large it is");
                 }
                 return b.shape.front();
             })
        .def("__repr__", represent_buffer);
    m.def("empty", empty, nb::arg("shape").none(), nb::arg("dtype").none() = nb::str("uint8"),
          nb::arg("pinned").none() = true,
          nb::sig(
              "def empty(shape: int | collections.abc.Iterable[int], dtype: typing.Any = 'uint8', "
              "pinned: bool = True) -> Buffer"),
          "Memory for I/O: aligned to pages, on huge pages from 2 MiB up, touched, contents "
          "undefined.\n\n"
          "pinned: locked into RAM. Where the limit forbids it the buffer works all the same, "
          "`pinned` is False\n"
          "and `pinned_reason` says why. Raises MemoryError when there is not so much.");
    m.def(
        "available_memory_bytes", [] { return available_memory_bytes(); },
        "Bytes that this process can take now without swapping, or being killed for it; private.");
    m.def(
        "in_its_storage",
        [](nb::object tensor, const nb::str& what) {
            refuse_past_storage(tensor, what.c_str());
            return tensor;
        },
        nb::arg("tensor"), nb::arg("what"), "The tensor; one that was cut short is refused.");
    m.def(
        "why_not_writable",
        [](std::uintptr_t address) {
            return why_not_writable(reinterpret_cast<const void*>(address));
        },
        nb::arg("address"),
        "Why the page of an address cannot be written; empty when it can, or nobody knows.");
    m.def(
        "as_bytes", as_bytes, nb::arg("tensor").none(),
        nb::sig("def as_bytes(tensor: Memory) -> Buffer"),
        "The bytes of a contiguous tensor, array or buffer of any element type, without a copy.\n\n"
        "The view keeps the tensor alive.");
}

}  // namespace penstock::python
