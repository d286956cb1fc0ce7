// SPDX-License-Identifier: Apache-2.0
#include "borrowed_memory.hpp"

#include "memory_protocols.hpp"
#include "names.hpp"
#include "writable.hpp"

#include <string_view>
#include <utility>

namespace penstock::python {

namespace {

[[noreturn]] void raise_read_only(const std::string& argument, nb::handle object) {
    if (const auto framework = immutable_framework(object); framework.name != nullptr) {
        raise_value(argument + ": arrays of " + framework.name + " are immutable, so this " +
                    type_text(object) +
                    " cannot be read into; read into buffer = penstock.empty(shape, dtype), and "
                    "make an array of that without a copy: " +
                    framework.maker);
    }
    raise_value(argument + ": read-only memory (" + type_text(object) +
                ") cannot be read into; give writable memory, for example penstock.empty(), a "
                "bytearray or a copy");
}

// ---- torch

// The parts of torch that are used here, once it has been imported. Never freed.
struct Torch {
    PyTypeObject* tensor = nullptr;
    PyObject* strided = nullptr;
};

// tensor is nullptr while torch is not imported, or only half.
const Torch& torch() {
    static Torch known;
    static const Name name("torch");
    if (known.tensor != nullptr) {
        return known;
    }
    PyObject* module = PyDict_GetItemWithError(PyImport_GetModuleDict(), name.get());
    if (module == nullptr) {
        return known;
    }
    PyObject* strided = PyObject_GetAttrString(module, "strided");
    PyObject* tensor = strided == nullptr ? nullptr : PyObject_GetAttrString(module, "Tensor");
    if (tensor == nullptr || !PyType_Check(tensor)) {
        PyErr_Clear();
        Py_XDECREF(strided);
        Py_XDECREF(tensor);
        return known;
    }
    known.strided = strided;
    known.tensor = reinterpret_cast<PyTypeObject*>(tensor);
    return known;
}

bool is_torch(nb::handle object) {
    PyTypeObject* type = torch().tensor;
    return type != nullptr && PyType_IsSubtype(Py_TYPE(object.ptr()), type) != 0;
}

std::string torch_layout(nb::handle tensor) {
    const std::string shape = text(nb::object(tensor.attr("shape")));
    const std::string strides = text(nb::object(tensor.attr("stride")()));
    return "shape " + shape + ", strides " + strides + " in elements";
}

// Whether it is on a GPU that can be reached, and not on the host.
bool is_on_gpu(nb::handle tensor, const std::string& argument, const Reach& reach) {
    static const Name is_cpu("is_cpu");
    static const Name is_cuda("is_cuda");
    if (truth(get(tensor, is_cpu))) {
        return false;
    }
    if (!reach.devices || !truth(get(tensor, is_cuda))) {
        raise_device(argument, tensor, text(nb::object(tensor.attr("device"))), reach);
    }
    if (torch_has_rocm()) {
        raise_device(argument, tensor, "a GPU of AMD (ROCm)", reach);
    }
    return true;
}

void check_torch(nb::handle tensor, const std::string& argument) {
    static const Name is_contiguous("is_contiguous");
    static const Name is_conj("is_conj");
    static const Name is_neg("is_neg");
    static const Name layout("layout");
    if (const nb::object its_layout = get(tensor, layout); its_layout.ptr() != torch().strided) {
        raise_value(argument + ": a tensor of layout " + text(its_layout) +
                    " has no single piece of memory; move its parts (indices, values), or a dense "
                    "copy (tensor.to_dense())");
    }
    if (!truth(call(tensor, is_contiguous))) {
        raise_not_contiguous(argument, tensor, torch_layout(tensor));
    }
    if (truth(call(tensor, is_conj)) || truth(call(tensor, is_neg))) {
        raise_value(argument +
                    ": this tensor is a lazy conjugate or negative: its memory does not hold its "
                    "values; give tensor.resolve_conj().resolve_neg()");
    }
}

// A subclass of a tensor may wrap others, as torch's DTensor does.
void refuse_null(const BorrowedMemory& memory, nb::handle object, const std::string& argument) {
    if (memory.data == nullptr && memory.bytes != 0) {
        raise_value(argument + ": this " + type_text(object) +
                    " has no memory of its own; give the tensor that it wraps");
    }
}

// Kept with the tensor is its storage of now: `tensor.data = other` would let it go while it is in
// use.
BorrowedMemory borrow_torch(nb::handle tensor, const std::string& argument, const Reach& reach) {
    static const Name storage("untyped_storage");
    static const Name data_ptr("data_ptr");
    static const Name nbytes("nbytes");
    const bool on_device = is_on_gpu(tensor, argument, reach);
    check_torch(tensor, argument);
    BorrowedMemory memory;
    const auto number = [](const nb::object& object) {
        const std::uint64_t value = PyLong_AsUnsignedLongLong(object.ptr());
        if (PyErr_Occurred() != nullptr) {
            throw nb::python_error();
        }
        return value;
    };
    const std::uint64_t address = number(call(tensor, data_ptr));
    memory.data = reinterpret_cast<std::byte*>(address);
    memory.bytes = number(get(tensor, nbytes));
    refuse_null(memory, tensor, argument);
    memory.keep.share = call(tensor, storage);
    const std::uint64_t begin = number(call(memory.keep.share, data_ptr));
    const std::uint64_t storage_bytes = number(call(memory.keep.share, nbytes));
    if (begin == 0 && memory.bytes != 0 && storage_bytes >= memory.bytes) {
        raise_value(argument + ": this " + type_text(tensor) +
                    " has no data; give a tensor that has");
    }
    if (memory.bytes != 0 && (address < begin || address - begin > storage_bytes ||
                              storage_bytes - (address - begin) < memory.bytes)) {
        raise_value(argument + ": this " + type_text(tensor) + " of " +
                    std::to_string(memory.bytes) + " bytes reaches past its storage, which has " +
                    std::to_string(storage_bytes) +
                    " (it was resized or freed); give a tensor whose memory is there");
    }
    memory.keep.object = nb::borrow(tensor);
    if (on_device) {
        locate(memory, tensor, argument);
        if (!reach.stream && memory.where == MemoryKind::kDevice) {
            memory.stream = torch_stream(memory.device);
        }
    }
    return memory;
}

// ---- buffer protocol

// Python's own references among the elements: 'O', outside of the names of fields (":name:").
bool has_references(const char* format) {
    bool in_name = false;
    for (const char* at = format; at != nullptr && *at != '\0'; ++at) {
        in_name = in_name != (*at == ':');
        if (*at == 'O' && !in_name) {
            return true;
        }
    }
    return false;
}

[[noreturn]] void raise_references(const std::string& argument, nb::handle object) {
    raise_value(argument + ": the elements of this " + type_text(object) +
                " are Python objects, and its memory holds their addresses, which mean nothing in "
                "a file; give numbers, or bytes (pickle.dumps())");
}

// Without a format where the type has none, like bfloat16, or none that a buffer can have, like
// datetime64: NumPy's dtype then says what is in it.
bool view_of(nb::handle object, const std::string& argument, Py_buffer& view) {
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDES | PyBUF_FORMAT) == 0) {
        if (has_references(view.format)) {
            PyBuffer_Release(&view);
            raise_references(argument, object);
        }
        return true;
    }
    PyErr_Clear();
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDES) != 0) {
        return false;
    }
    if (truth(
            nb::getattr(nb::getattr(object, "dtype", nb::none()), "hasobject", nb::bool_(false)))) {
        PyBuffer_Release(&view);
        raise_references(argument, object);
    }
    static char no_numbers[] = "x";
    view.format = no_numbers;
    return true;
}

// Integers are in this machine's order of bytes.
char kind_of(const char* format) {
    if (format == nullptr) {
        return 'u';  // bytes
    }
    format += *format != '\0' && std::string_view("@=^<").find(*format) != std::string_view::npos;
    if (*format == '\0' || format[1] != '\0') {
        return 0;
    }
    const std::string_view letter(format, 1);
    return std::string_view("bhilqn").find(letter) != std::string_view::npos   ? 'i'
           : std::string_view("BHILQN").find(letter) != std::string_view::npos ? 'u'
                                                                               : '\0';
}

std::string view_layout(const Py_buffer& view) {
    std::string shape;
    std::string strides;
    for (int i = 0; i < view.ndim; ++i) {
        const char* comma = i == 0 ? "" : ", ";
        shape += comma + std::to_string(view.shape[i]);
        strides += comma + std::to_string(view.strides[i]);
    }
    return "shape (" + shape + "), strides (" + strides + ") in bytes";
}

// Any error of a property is raised, but for AttributeError.
bool has(nb::handle object, const char* name) {
    const nb::object found = nb::steal(PyObject_GetAttrString(object.ptr(), name));
    if (!found.is_valid() && PyErr_ExceptionMatches(PyExc_AttributeError) == 0) {
        throw nb::python_error();
    }
    PyErr_Clear();
    return found.is_valid();
}

// False where the object has the protocol but not for this memory, so that DLPack may be tried.
bool borrow_view(nb::handle object, const std::string& argument, BorrowedMemory& memory) {
    auto view = std::make_unique<Py_buffer>();
    // Not asked for as writable: that is refused with our own words.
    if (!view_of(object, argument, *view)) {
        nb::python_error refused;
        // CuPy's arrays have the protocol, and refuse it for memory of a GPU.
        const bool of_gpu =
            refused.matches(PyExc_TypeError) && has(object, "__cuda_array_interface__");
        if (!of_gpu && !refused.matches(PyExc_BufferError) && !refused.matches(PyExc_ValueError)) {
            throw refused;
        }
        return false;
    }
    memory.keep.view.reset(view.release());
    const Py_buffer& got = *memory.keep.view;
    if (PyBuffer_IsContiguous(&got, 'C') == 0) {
        raise_not_contiguous(argument, object, view_layout(got));
    }
    memory.data = static_cast<std::byte*>(got.buf);
    memory.bytes = static_cast<std::uint64_t>(got.len);
    memory.readonly = got.readonly != 0;
    memory.item_bytes = static_cast<std::size_t>(got.itemsize);
    memory.keep.object = nb::borrow(object);
    return true;
}

BorrowedMemory borrow_any(nb::handle object, const std::string& argument, const Reach& reach) {
    BorrowedMemory memory;
    if (PyObject_CheckBuffer(object.ptr()) != 0 && borrow_view(object, argument, memory)) {
        return memory;
    }
    if (has(object, "__dlpack__") && has(object, "__dlpack_device__")) {
        memory = borrow_dlpack(object, argument, reach);
        refuse_null(memory, object, argument);
        return memory;
    }
    if (has(object, "__cuda_array_interface__")) {
        return borrow_cuda_array(object, argument, reach);
    }
    raise_type(argument + ": got " + type_text(object) +
               ", which has neither DLPack nor the buffer protocol; give a tensor, an array, a "
               "bytearray or a list of them");
}

BorrowedMemory borrow_within(nb::handle object, const std::string& argument, bool writable,
                             const Reach& reach) {
    const bool of_torch = is_torch(object);
    BorrowedMemory memory =
        of_torch ? borrow_torch(object, argument, reach) : borrow_any(object, argument, reach);
    if (writable && memory.readonly) {
        raise_read_only(argument, object);
    }
    // All others say it themselves.
    if (writable && memory.bytes != 0 && of_torch && memory.where == MemoryKind::kHost) {
        if (const std::string reason = why_not_writable(memory.data); !reason.empty()) {
            raise_value(argument + ": this " + type_text(object) + " cannot be written: " + reason +
                        "; give tensor.clone() or torch.empty_like(tensor)");
        }
    }
    return memory;
}

}  // namespace

StreamHandle torch_stream(std::int32_t device) {
    const nb::object cuda = nb::module_::import_("torch").attr("cuda");
    StreamHandle stream{.handle = 0, .device = device};
    if (truth(cuda.attr("is_initialized")())) {  // else torch has nothing under way there
        stream.handle =
            nb::cast<std::uintptr_t>(cuda.attr("current_stream")(device).attr("cuda_stream"));
    }
    return stream;
}

bool torch_has_rocm() {
    const nb::object version = nb::module_::import_("torch").attr("version");
    return !nb::getattr(version, "hip", nb::none()).is_none();
}

BorrowedMemory borrow_elements(nb::handle object, const std::string& argument) {
    BorrowedMemory memory = borrow_any(object, argument, {});
    if (memory.keep.view) {
        memory.kind = kind_of(memory.keep.view->format);
    }
    return memory;
}

BorrowedMemory borrow(nb::handle object, const std::string& argument, bool writable) {
    return borrow_within(object, argument, writable, {});
}

BorrowedMemory borrow_anywhere(nb::handle object, const std::string& argument, bool writable,
                               const std::optional<StreamHandle>& stream) {
    return borrow_within(object, argument, writable, {.devices = true, .stream = stream});
}

std::shared_ptr<void> share_of(Keep&& keep) {
    return {new Keep(std::move(keep)), [](void* kept) {
                if (!nb::is_alive()) {
                    return;  // the interpreter is gone, and its objects with it
                }
                const nb::gil_scoped_acquire gil;
                delete static_cast<Keep*>(kept);
            }};
}

}  // namespace penstock::python
