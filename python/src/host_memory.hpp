// SPDX-License-Identifier: Apache-2.0
// The memory of another object: of a torch tensor, of whatever has the buffer protocol
// (NumPy, bytearray, mmap, ...) or DLPack (JAX, CuPy's host arrays, ...), in that order, for the
// first two cost under a microsecond. torch is never imported: a tensor of it cannot come in before
// it was.
#pragma once

#include "nanobind.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace penstock::python {

/// Keeps the object and its memory where they are. Made and destroyed with the GIL.
struct Keep {
    struct ReleaseView {
        void operator()(Py_buffer* view) const {
            PyBuffer_Release(view);
            delete view;
        }
    };
    nb::object object;
    nb::object share;  ///< a DLPack capsule, or torch's storage
    std::unique_ptr<Py_buffer, ReleaseView> view;
};

struct HostMemory {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    bool readonly = false;
    char kind = 0;  ///< of its elements: 'i', 'u' for integers; of torch not looked at
    std::size_t item_bytes = 0;
    Keep keep;
};

/// Throws nb::value_error or nb::type_error, naming the argument, what came and what is allowed.
[[nodiscard]] HostMemory borrow(nb::handle object, const std::string& argument, bool writable);
/// To look at, with the kind of its elements, torch's too.
[[nodiscard]] HostMemory borrow_elements(nb::handle object, const std::string& argument);

}  // namespace penstock::python
