// SPDX-License-Identifier: Apache-2.0
#include "host_memory.hpp"

#include "dlpack_abi.hpp"
#include "names.hpp"
#include "writable.hpp"

#include <string_view>
#include <utility>

namespace penstock::python {

namespace {

[[noreturn]] void raise_not_contiguous(const std::string& argument, nb::handle object,
                                       const std::string& layout) {
    raise_value(argument + ": this " + type_text(object) + " is not contiguous (" + layout +
                "), and what is moved has to lie in one piece; give a contiguous copy "
                "(torch: tensor.contiguous(), NumPy: numpy.ascontiguousarray(array)), or read into "
                "one and copy from there");
}

// Frameworks whose arrays never change: others may look into the same memory, and compiled
// programs rely on it. Of their types only some say that they are read-only.
struct ImmutableFramework {
    const char* name = nullptr;  ///< nullptr: none
    const char* maker = nullptr;
};

ImmutableFramework immutable_framework(nb::handle object) {
    // The stable ABI has no fields of types, and this call for all types since Python 3.10.
    for (PyTypeObject* type = Py_TYPE(object.ptr()); type != nullptr;
         type = static_cast<PyTypeObject*>(PyType_GetSlot(type, Py_tp_base))) {
        const nb::object module =
            nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__module__", nb::none());
        const std::string name = nb::isinstance<nb::str>(module) ? text(module) : "";
        const std::string root = name.substr(0, name.find('.'));
        if (root == "jax" || root == "jaxlib") {
            return {"JAX", "jax.numpy.from_dlpack(buffer)"};
        }
        if (root == "tensorflow") {
            return {"TensorFlow", "tf.experimental.dlpack.from_dlpack(buffer.__dlpack__())"};
        }
    }
    return {};
}

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

[[noreturn]] void raise_device(const std::string& argument, nb::handle object,
                               const std::string& device) {
    raise_value(argument + ": this " + type_text(object) + " is on " + device +
                ", and this version of Penstock moves host memory only; go through a tensor on the "
                "CPU (tensor.cpu(), or read into one and copy it to the device)");
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

void check_torch(nb::handle tensor, const std::string& argument) {
    static const Name is_cpu("is_cpu");
    static const Name is_contiguous("is_contiguous");
    static const Name is_conj("is_conj");
    static const Name is_neg("is_neg");
    static const Name layout("layout");
    if (!truth(get(tensor, is_cpu))) {
        raise_device(argument, tensor, text(nb::object(tensor.attr("device"))));
    }
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

// Kept with the tensor is its storage of now: `tensor.data = other` would let it go while it is in
// use.
HostMemory borrow_torch(nb::handle tensor, const std::string& argument) {
    static const Name storage("untyped_storage");
    static const Name data_ptr("data_ptr");
    static const Name nbytes("nbytes");
    check_torch(tensor, argument);
    HostMemory memory;
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
    if (memory.data == nullptr && memory.bytes != 0) {
        raise_value(argument + ": this " + type_text(tensor) +
                    " has no memory of its own; give the tensor that it wraps");
    }
    memory.keep.share = call(tensor, storage);
    const std::uint64_t begin = number(call(memory.keep.share, data_ptr));
    const std::uint64_t storage_bytes = number(call(memory.keep.share, nbytes));
    if (memory.bytes != 0 && (address < begin || address - begin > storage_bytes ||
                              storage_bytes - (address - begin) < memory.bytes)) {
        raise_value(argument + ": this " + type_text(tensor) + " of " +
                    std::to_string(memory.bytes) + " bytes reaches past its storage, which has " +
                    std::to_string(storage_bytes) +
                    " (it was resized or freed); give a tensor whose memory is there");
    }
    memory.keep.object = nb::borrow(tensor);
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

// False where the object has the protocol but not for this memory, so that DLPack may be tried.
bool borrow_view(nb::handle object, const std::string& argument, HostMemory& memory) {
    auto view = std::make_unique<Py_buffer>();
    // Not asked for as writable: that is refused with our own words.
    if (!view_of(object, argument, *view)) {
        if (PyErr_ExceptionMatches(PyExc_BufferError) == 0 &&
            PyErr_ExceptionMatches(PyExc_ValueError) == 0) {
            throw nb::python_error();
        }
        PyErr_Clear();
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
    memory.kind = kind_of(got.format);
    memory.item_bytes = static_cast<std::size_t>(got.itemsize);
    memory.keep.object = nb::borrow(object);
    return true;
}

// ---- DLPack

std::string device_name(std::int32_t type, std::int32_t id) {
    switch (type) {
        case 2:
            return "a CUDA device (cuda:" + std::to_string(id) + ")";
        case 7:
            return "a Vulkan device";
        case 8:
            return "a Metal device";
        case 10:
            return "a ROCm device (rocm:" + std::to_string(id) + ")";
        case 13:
            return "CUDA managed memory";
        case 14:
            return "a oneAPI device";
        default:
            return "a device of DLPack type " + std::to_string(type);
    }
}

void check_device(nb::handle object, const std::string& argument) {
    const nb::object device = object.attr("__dlpack_device__")();
    const auto type = nb::cast<std::int32_t>(nb::int_(nb::object(device[0])));
    const auto id = nb::cast<std::int32_t>(nb::int_(nb::object(device[1])));
    if (type != dlpack::kCpu && type != dlpack::kCudaHost && type != dlpack::kRocmHost) {
        raise_device(argument, object, device_name(type, id));
    }
}

nb::object export_dlpack(nb::handle object, const std::string& argument) {
    try {
        try {
            return object.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
        } catch (nb::python_error& error) {
            if (!error.matches(PyExc_TypeError)) {
                throw;
            }
        }
        return object.attr("__dlpack__")();  // from before 1.0
    } catch (nb::python_error& error) {
        const std::string reason = error.what();
        raise_value(argument + ": this " + type_text(object) +
                    " does not give its memory: " + reason);
    }
}

bool is_contiguous(const dlpack::Tensor& tensor) {
    if (tensor.strides == nullptr) {
        return true;
    }
    std::int64_t expected = 1;
    bool contiguous = true;
    for (std::int32_t i = tensor.ndim - 1; i >= 0; --i) {
        if (tensor.shape[i] == 0) {
            return true;
        }
        contiguous = contiguous && (tensor.shape[i] == 1 || tensor.strides[i] == expected);
        expected *= tensor.shape[i];
    }
    return contiguous;
}

std::string dlpack_layout(const dlpack::Tensor& tensor) {
    std::string shape;
    std::string strides;
    for (std::int32_t i = 0; i < tensor.ndim; ++i) {
        const char* comma = i == 0 ? "" : ", ";
        shape += comma + std::to_string(tensor.shape[i]);
        strides += comma + std::to_string(tensor.strides[i]);
    }
    return "shape (" + shape + "), strides (" + strides + ") in elements";
}

std::uint64_t byte_count(const dlpack::Tensor& tensor) {
    std::uint64_t elements = 1;
    for (std::int32_t i = 0; i < tensor.ndim; ++i) {
        elements *= static_cast<std::uint64_t>(tensor.shape[i]);
    }
    return (elements * tensor.dtype.bits * tensor.dtype.lanes + 7) / 8;
}

// The capsule is kept, not consumed: dropping it gives the memory back.
HostMemory borrow_dlpack(nb::handle object, const std::string& argument) {
    check_device(object, argument);
    HostMemory memory;
    memory.keep.share = export_dlpack(object, argument);
    PyObject* capsule = memory.keep.share.ptr();
    const dlpack::Tensor* tensor = nullptr;
    if (PyCapsule_IsValid(capsule, dlpack::kNameVersioned) != 0) {
        const auto* managed = static_cast<const dlpack::ManagedTensorVersioned*>(
            PyCapsule_GetPointer(capsule, dlpack::kNameVersioned));
        if (managed->version.major != 1) {
            raise_value(argument + ": this " + type_text(object) + " speaks DLPack " +
                        std::to_string(managed->version.major) +
                        ", and Penstock 1 and what was "
                        "before it");
        }
        tensor = &managed->dl_tensor;
        memory.readonly = (managed->flags & dlpack::kFlagReadOnly) != 0;
    } else if (PyCapsule_IsValid(capsule, dlpack::kName) != 0) {
        tensor =
            &static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, dlpack::kName))
                 ->dl_tensor;
    } else {
        raise_type(argument + ": __dlpack__ of this " + type_text(object) +
                   " gave no DLPack capsule");
    }
    if (!is_contiguous(*tensor)) {
        raise_not_contiguous(argument, object, dlpack_layout(*tensor));
    }
    memory.readonly = memory.readonly || immutable_framework(object).name != nullptr;
    memory.data = static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
    memory.bytes = byte_count(*tensor);
    memory.kind = tensor->dtype.code == dlpack::kInt    ? 'i'
                  : tensor->dtype.code == dlpack::kUInt ? 'u'
                                                        : '\0';
    memory.item_bytes = std::size_t{tensor->dtype.bits} * tensor->dtype.lanes / 8;
    memory.keep.object = nb::borrow(object);
    return memory;
}

HostMemory borrow_any(nb::handle object, const std::string& argument) {
    HostMemory memory;
    if (PyObject_CheckBuffer(object.ptr()) != 0 && borrow_view(object, argument, memory)) {
        return memory;
    }
    if (nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__dlpack_device__")) {
        return borrow_dlpack(object, argument);
    }
    raise_type(argument + ": got " + type_text(object) +
               ", which has neither DLPack nor the buffer protocol; give a tensor, an array, a "
               "bytearray or a list of them");
}

}  // namespace

HostMemory borrow_elements(nb::handle object, const std::string& argument) {
    return borrow_any(object, argument);
}

HostMemory borrow(nb::handle object, const std::string& argument, bool writable) {
    HostMemory memory =
        is_torch(object) ? borrow_torch(object, argument) : borrow_any(object, argument);
    if (writable && memory.readonly) {
        raise_read_only(argument, object);
    }
    if (writable && memory.bytes != 0 && is_torch(object)) {  // all others say it themselves
        if (const std::string reason = why_not_writable(memory.data); !reason.empty()) {
            raise_value(argument + ": this " + type_text(object) + " cannot be written: " + reason +
                        "; give tensor.clone() or torch.empty_like(tensor)");
        }
    }
    return memory;
}

}  // namespace penstock::python
