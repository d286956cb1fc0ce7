// SPDX-License-Identifier: Apache-2.0
#include "streams.hpp"

#include "names.hpp"

#include <algorithm>
#include <vector>

namespace penstock::python {

namespace {

constexpr const char* kAllowed =
    "give None, a handle (int), or an object with __cuda_stream__ or cuda_stream, such as "
    "torch.cuda.Stream (CuPy: stream.ptr, Numba: stream.handle.value)";

std::uintptr_t handle_of(nb::handle number, nb::handle stream) {
    const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
    if (!index.is_valid()) {
        PyErr_Clear();
        raise_type("stream: the handle of " + shown(stream) + " is " + shown(number) + "; " +
                   kAllowed);
    }
    const auto handle = static_cast<std::uintptr_t>(PyLong_AsUnsignedLongLong(index.ptr()));
    if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        raise_value("stream: " + shown(number) + " is no handle of a stream; " + kAllowed);
    }
    return handle;
}

// (version, handle), as a method or as an attribute.
std::uintptr_t handle_of_protocol(nb::handle stream) {
    nb::object answer = stream.attr("__cuda_stream__");
    if (PyCallable_Check(answer.ptr()) != 0) {
        answer = answer();
    }
    if (PyTuple_Check(answer.ptr()) == 0 || PyTuple_Size(answer.ptr()) != 2) {
        raise_type("stream: __cuda_stream__ of " + shown(stream) + " gave " + shown(answer) +
                   ", where (0, handle) is expected");
    }
    return handle_of(nb::object(answer[1]), stream);
}

// torch's streams say which device they are of.
std::int32_t device_of(nb::handle stream) {
    const nb::object device = nb::getattr(stream, "device_index", nb::none());
    const long number = PyLong_Check(device.ptr()) != 0 ? PyLong_AsLong(device.ptr()) : -1;
    PyErr_Clear();
    return number >= 0 && number < INT32_MAX ? static_cast<std::int32_t>(number) : -1;
}

}  // namespace

std::optional<StreamHandle> stream_of(nb::handle stream) {
    if (stream.is_none()) {
        return std::nullopt;
    }
    if (nb::hasattr(stream, "__cuda_stream__")) {
        return StreamHandle{.handle = handle_of_protocol(stream), .device = device_of(stream)};
    }
    if (nb::hasattr(stream, "cuda_stream")) {
        return StreamHandle{.handle = handle_of(stream.attr("cuda_stream"), stream),
                            .device = device_of(stream)};
    }
    if (PyBool_Check(stream.ptr()) != 0 || PyIndex_Check(stream.ptr()) == 0) {
        raise_type("stream: got " + type_text(stream) + "; " + kAllowed);
    }
    return StreamHandle{.handle = handle_of(stream, stream), .device = -1};
}

void wait_for_streams(std::span<const StreamHandle> streams) {
    if (!streams.empty()) {
        StreamMark(streams, {}).wait();
    }
}

Streams::Streams(nb::handle stream, TransferOptions& options)
    : options_(options), given_(stream_of(stream)) {
    if (given_) {
        options_.streams.push_back(*given_);
    }
}

void Streams::add(const BorrowedMemory& memory) {
    if (memory.where != MemoryKind::kDevice) {
        on_host_ = on_host_ || memory.bytes != 0;  // nobody asks where an empty tensor is
        return;
    }
    on_device_ = true;
    std::vector<StreamHandle>& all = options_.streams;
    if ((!given_ || memory.stream_is_named) &&
        std::find(all.begin(), all.end(), memory.stream) == all.end()) {
        all.push_back(memory.stream);
    }
}

void Streams::check() const {
    if (given_ && !on_device_ && on_host_) {
        raise_value(
            "stream: a stream orders what is done with the memory of a GPU, and this call moves "
            "host memory only; leave it None, and synchronise the stream where it writes to that "
            "memory");
    }
}

}  // namespace penstock::python
