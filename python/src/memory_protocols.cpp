// SPDX-License-Identifier: Apache-2.0
#include "memory_protocols.hpp"

#include "dlpack_abi.hpp"
#include "errors.hpp"
#include "names.hpp"
#include "streams.hpp"

#include <penstock/error.hpp>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace penstock::python {

void raise_not_contiguous(const std::string& argument, nb::handle object,
                          const std::string& layout) {
    raise_value(argument + ": this " + type_text(object) + " is not contiguous (" + layout +
                "), and what is moved has to lie in one piece; give a contiguous copy "
                "(torch: tensor.contiguous(), NumPy: numpy.ascontiguousarray(array)), or read into "
                "one and copy from there");
}

void raise_device(const std::string& argument, nb::handle object, const std::string& device,
                  const Reach& reach) {
    raise_value(argument + ": this " + type_text(object) + " is on " + device +
                (reach.devices
                     ? ", and Penstock moves host memory and that of NVIDIA's GPUs (CUDA); go "
                     : ", and what is given here has to be host memory; go ") +
                "through a tensor on the CPU (tensor.cpu(), or read into one and copy it to the "
                "device)");
}

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

void locate(BorrowedMemory& memory, nb::handle object, const std::string& argument) {
    if (memory.bytes == 0) {
        return;  // nothing moves
    }
    try {
        const Memory found = [&] {
            const nb::gil_scoped_release nogil;  // the first question opens the driver
            return device_memory(memory.data, memory.bytes);
        }();
        memory.where = found.kind;
        memory.device = found.device;
    } catch (const Error& error) {
        throw Error(error.reason(), error.system_errno(), error.operation(), error.path(),
                    error.offset(),
                    argument + ": the memory of this " + type_text(object) +
                        " cannot be moved: " + message_of(error));
    }
}

// ---- DLPack

namespace {

std::string device_name(std::int32_t type, std::int32_t id) {
    switch (type) {
        case dlpack::kCuda:
            return "a CUDA device (cuda:" + std::to_string(id) + ")";
        case 7:
            return "a Vulkan device";
        case 8:
            return "a Metal device";
        case 10:
            return "a ROCm device (rocm:" + std::to_string(id) + ")";
        case dlpack::kCudaManaged:
            return "CUDA managed memory";
        case 14:
            return "a oneAPI device";
        default:
            return "a device of DLPack type " + std::to_string(type);
    }
}

// False: it is host memory.
bool is_on_gpu_by_dlpack(nb::handle object, const std::string& argument, const Reach& reach) {
    const nb::object device = object.attr("__dlpack_device__")();
    const auto type = nb::cast<std::int32_t>(nb::int_(nb::object(device[0])));
    const auto id = nb::cast<std::int32_t>(nb::int_(nb::object(device[1])));
    if (type == dlpack::kCpu || type == dlpack::kCudaHost || type == dlpack::kRocmHost) {
        return false;
    }
    if (!reach.devices || (type != dlpack::kCuda && type != dlpack::kCudaManaged)) {
        raise_device(argument, object, device_name(type, id), reach);
    }
    return true;
}

// The object puts what it has under way on a GPU before what `stream` does from now on.
nb::object export_dlpack(nb::handle object, const std::string& argument,
                         const StreamHandle* stream) {
    const auto ask = [&](bool versioned) -> nb::object {
        nb::kwargs given;
        if (stream != nullptr) {
            // There, 1 is the default stream, and 0 means nothing.
            given["stream"] = nb::int_(stream->handle == 0 ? std::uintptr_t{1} : stream->handle);
        }
        if (versioned) {
            given["max_version"] = nb::make_tuple(1, 0);
        }
        return object.attr("__dlpack__")(**given);
    };
    try {
        try {
            return ask(true);
        } catch (nb::python_error& error) {
            if (!error.matches(PyExc_TypeError)) {
                throw;
            }
        }
        return ask(false);  // from before 1.0
    } catch (nb::python_error& error) {
        const std::string reason = text(error.type().attr("__name__")) + ": " + text(error.value());
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

}  // namespace

// The capsule is kept, not consumed: dropping it gives the memory back.
BorrowedMemory borrow_dlpack(nb::handle object, const std::string& argument, const Reach& reach) {
    const bool on_device = is_on_gpu_by_dlpack(object, argument, reach);
    const StreamHandle stream = reach.stream.value_or(StreamHandle{});
    BorrowedMemory memory;
    memory.keep.share = export_dlpack(object, argument, on_device ? &stream : nullptr);
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
    if (on_device) {
        locate(memory, object, argument);
        memory.stream = {.handle = stream.handle, .device = memory.device};
    }
    return memory;
}

// ---- __cuda_array_interface__

namespace {

[[noreturn]] void raise_interface(const std::string& argument, nb::handle object,
                                  const std::string& what) {
    raise_value(argument + ": __cuda_array_interface__ of this " + type_text(object) + " " + what +
                "; give an array of CuPy, Numba, JAX or torch");
}

// Entries of the dictionary that an object describes its memory with.
class ArrayInterface {
public:
    ArrayInterface(nb::handle object, const std::string& argument)
        : object_(object), argument_(argument), entries_(object.attr("__cuda_array_interface__")) {
        if (PyDict_Check(entries_.ptr()) == 0) {
            raise_interface(argument, object, "is no dictionary");
        }
    }

    [[noreturn]] void raise(const std::string& what) const {
        raise_interface(argument_, object_, what);
    }

    /// None where there is no such entry.
    [[nodiscard]] nb::object entry(const char* name) const {
        PyObject* const found = PyDict_GetItemString(entries_.ptr(), name);
        return found == nullptr ? nb::none() : nb::borrow(found);
    }

    [[nodiscard]] std::uint64_t number(nb::handle value, const char* what) const {
        const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
        const std::uint64_t out =
            index.is_valid() ? PyLong_AsUnsignedLongLong(index.ptr()) : std::uint64_t{0};
        if (PyErr_Occurred() != nullptr) {
            PyErr_Clear();
            raise("has " + shown(value) + " as its " + what);
        }
        return out;
    }

    /// The elements of a tuple or list.
    [[nodiscard]] std::vector<nb::object> elements(const char* name) const {
        const nb::object found = entry(name);
        if (PyTuple_Check(found.ptr()) == 0 && PyList_Check(found.ptr()) == 0) {
            raise("has " + shown(found) + " as its " + name);
        }
        std::vector<nb::object> out;
        for (const nb::handle element : nb::iter(found)) {
            out.push_back(nb::borrow(element));
        }
        return out;
    }

private:
    nb::handle object_;
    const std::string& argument_;
    nb::object entries_;
};

// Bytes of an element: "<f4" has 4.
std::uint64_t element_bytes(const ArrayInterface& interface, std::string_view type) {
    std::uint64_t bytes = 0;
    const char* const end = type.data() + type.size();
    if (type.size() < 3) {
        interface.raise("has no type of its elements");
    }
    const auto [stop, error] = std::from_chars(type.data() + 2, end, bytes);
    if (error != std::errc() || stop != end || bytes == 0) {
        interface.raise("has '" + std::string(type) + "' as its typestr");
    }
    return bytes;
}

struct ArrayShape {
    std::vector<std::uint64_t> extents;
    std::uint64_t bytes = 0;
};

ArrayShape array_shape(const ArrayInterface& interface, std::uint64_t item_bytes) {
    ArrayShape shape{.extents = {}, .bytes = item_bytes};
    bool fits = true;
    bool empty = false;
    for (const nb::object& extent : interface.elements("shape")) {
        shape.extents.push_back(interface.number(extent, "shape"));
        empty = empty || shape.extents.back() == 0;
        fits = fits && !__builtin_mul_overflow(shape.bytes, shape.extents.back(), &shape.bytes);
    }
    if (empty) {
        shape.bytes = 0;
    } else if (!fits) {
        interface.raise("has more bytes than any memory");
    }
    return shape;
}

// Without strides it is contiguous.
bool is_contiguous(const ArrayInterface& interface, const ArrayShape& shape,
                   std::uint64_t item_bytes) {
    if (interface.entry("strides").is_none() || shape.bytes == 0) {
        return true;
    }
    const std::vector<nb::object> strides = interface.elements("strides");
    if (strides.size() != shape.extents.size()) {
        interface.raise("has strides that are not as many as its dimensions");
    }
    std::uint64_t expected = item_bytes;
    for (std::size_t i = strides.size(); i-- > 0;) {
        if (shape.extents[i] != 1 &&
            PyLong_AsLongLong(strides[i].ptr()) != static_cast<long long>(expected)) {
            PyErr_Clear();
            return false;
        }
        expected *= shape.extents[i];
    }
    return true;
}

}  // namespace

BorrowedMemory borrow_cuda_array(nb::handle object, const std::string& argument,
                                 const Reach& reach) {
    if (!reach.devices) {
        raise_device(argument, object, "a CUDA device", reach);
    }
    const ArrayInterface interface(object, argument);
    if (!interface.entry("mask").is_none()) {
        raise_value(argument + ": this " + type_text(object) +
                    " has a mask, and is more than one piece of memory; give its data and its mask "
                    "one after the other");
    }
    const nb::object type = interface.entry("typestr");
    BorrowedMemory memory;
    memory.item_bytes =
        element_bytes(interface, PyUnicode_Check(type.ptr()) != 0 ? text(type) : std::string());
    const ArrayShape shape = array_shape(interface, memory.item_bytes);
    if (!is_contiguous(interface, shape, memory.item_bytes)) {
        raise_not_contiguous(argument, object,
                             "shape " + shown(interface.entry("shape")) + ", strides " +
                                 shown(interface.entry("strides")) + " in bytes");
    }
    const std::vector<nb::object> data = interface.elements("data");
    if (data.size() != 2) {
        interface.raise("has " + shown(interface.entry("data")) + " as its data");
    }
    memory.data = reinterpret_cast<std::byte*>(interface.number(data[0], "address"));
    memory.readonly = truth(data[1]) || immutable_framework(object).name != nullptr;
    memory.bytes = shape.bytes;
    memory.keep.object = nb::borrow(object);
    locate(memory, object, argument);
    memory.stream.device = memory.device;
    if (const nb::object stream = interface.entry("stream"); !stream.is_none()) {
        memory.stream.handle = interface.number(stream, "stream");
        memory.stream_is_named = memory.where == MemoryKind::kDevice;
        if (!memory.stream_is_named && memory.bytes != 0) {  // no transfer orders host memory
            memory.stream.device = -1;
            const nb::gil_scoped_release nogil;
            wait_for_streams({&memory.stream, 1});
        }
    }
    return memory;
}

}  // namespace penstock::python
