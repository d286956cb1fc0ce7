// SPDX-License-Identifier: Apache-2.0
#include "buffer_object.hpp"

#include "dlpack_abi.hpp"
#include "names.hpp"

#include <utility>

namespace penstock::python {

namespace {

int fail_view(Py_buffer* view, const char* message) {
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, message);
    return -1;
}

int get_view(PyObject* self, Py_buffer* view, int flags) {
    static Py_ssize_t one = 1;
    const BufferObject& buffer = *nb::inst_ptr<BufferObject>(self);
    if ((flags & PyBUF_WRITABLE) == PyBUF_WRITABLE && buffer.readonly) {
        return fail_view(view, "this penstock.Buffer is a view of read-only memory");
    }
    // An element type that the struct module does not know is shown as what it is made of: bytes.
    const bool typed = buffer.type->buffer != nullptr;
    const bool wants_format = (flags & PyBUF_FORMAT) == PyBUF_FORMAT;
    view->buf = buffer.data;
    view->len = static_cast<Py_ssize_t>(buffer.bytes);
    view->itemsize = typed ? buffer.type->bits / 8 : 1;
    view->readonly = buffer.readonly ? 1 : 0;
    view->ndim = typed ? static_cast<int>(buffer.shape.size()) : 1;
    view->format = wants_format ? const_cast<char*>(typed ? buffer.type->buffer : "B") : nullptr;
    view->shape = nullptr;
    view->strides = nullptr;
    view->suboffsets = nullptr;
    view->internal = nullptr;
    if ((flags & PyBUF_ND) == PyBUF_ND) {
        static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));
        // Without a format the flat view's shape is its length, which is right there in the view.
        view->shape =
            typed ? reinterpret_cast<Py_ssize_t*>(const_cast<std::int64_t*>(buffer.shape.data()))
                  : &view->len;
    }
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) {
        view->strides = typed ? const_cast<Py_ssize_t*>(buffer.strides_bytes.data()) : &one;
    }
    Py_INCREF(self);
    view->obj = self;
    return 0;
}

void release_view(PyObject* /*self*/, Py_buffer* /*view*/) {}

// The target of a capsule: it shares the memory, not the Python object.
template <typename Managed>
struct Exported {
    Managed managed{};
    std::shared_ptr<void> owner;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;

    static void destroy(Managed* self) { delete static_cast<Exported*>(self->manager_ctx); }
};

template <typename Managed>
Exported<Managed>* make_exported(const BufferObject& buffer) {
    auto exported = std::make_unique<Exported<Managed>>();
    exported->owner = buffer.owner;
    exported->shape = buffer.shape;
    exported->strides.resize(buffer.shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = buffer.shape.size(); i-- > 0;) {
        exported->strides[i] = stride;
        stride *= buffer.shape[i];
    }
    Managed& managed = exported->managed;
    managed.manager_ctx = exported.get();
    managed.deleter = &Exported<Managed>::destroy;
    managed.dl_tensor = {
        .data = buffer.data,
        .device = {dlpack::kCpu, 0},
        .ndim = static_cast<std::int32_t>(buffer.shape.size()),
        .dtype = {static_cast<std::uint8_t>(buffer.type->dlpack), buffer.type->bits, 1},
        .shape = exported->shape.data(),
        .strides = exported->strides.data(),
        .byte_offset = 0};
    return exported.release();
}

// A capsule that nobody consumed. A consumer renames it and calls the deleter itself.
template <typename Managed>
void destroy_capsule(PyObject* capsule, const char* name) {
    if (PyCapsule_IsValid(capsule, name) != 0) {
        auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
        managed->deleter(managed);
    }
}

template <typename Managed>
nb::object capsule_of(Exported<Managed>* exported, const char* name, PyCapsule_Destructor destroy) {
    PyObject* capsule = PyCapsule_New(&exported->managed, name, destroy);
    if (capsule == nullptr) {
        delete exported;
    }
    return checked(capsule);
}

}  // namespace

PyType_Slot* buffer_slots() {
    static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_view)},
                                  {Py_bf_releasebuffer, reinterpret_cast<void*>(release_view)},
                                  {0, nullptr}};
    return slots;
}

nb::object export_capsule(const BufferObject& buffer, bool versioned, bool copied) {
    if (!versioned) {
        if (buffer.readonly) {
            PyErr_SetString(
                PyExc_BufferError,
                "this penstock.Buffer is read-only, which DLPack before 1.0 cannot say");
            throw nb::python_error();
        }
        return capsule_of(make_exported<dlpack::ManagedTensor>(buffer), dlpack::kName,
                          [](PyObject* capsule) {
                              destroy_capsule<dlpack::ManagedTensor>(capsule, dlpack::kName);
                          });
    }
    auto* exported = make_exported<dlpack::ManagedTensorVersioned>(buffer);
    exported->managed.version = {1, 0};
    exported->managed.flags =
        (buffer.readonly ? dlpack::kFlagReadOnly : 0) | (copied ? dlpack::kFlagIsCopied : 0);
    return capsule_of(exported, dlpack::kNameVersioned, [](PyObject* capsule) {
        destroy_capsule<dlpack::ManagedTensorVersioned>(capsule, dlpack::kNameVersioned);
    });
}

}  // namespace penstock::python
