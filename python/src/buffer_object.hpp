// SPDX-License-Identifier: Apache-2.0
// penstock.Buffer: a shaped piece of host memory that speaks DLPack and the buffer protocol. Either
// memory of our pools (empty) or a view of somebody else's (as_bytes).
#pragma once

#include "nanobind.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock::python {

/// An element type, as Python's frameworks name it.
struct ElementType {
    const char* name;
    std::uint8_t dlpack_code;
    std::uint8_t bits;
    const char* format;  ///< of the struct module; nullptr where that has none: shown as bytes
};

/// From "float32", numpy.float32, numpy.dtype("float32"), torch.float32, ...
[[nodiscard]] const ElementType& element_type(nb::handle dtype);
[[nodiscard]] const ElementType& byte_type();

struct BufferObject {
    std::shared_ptr<void> owner;  ///< of the memory; may be shared with DLPack capsules
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::vector<std::int64_t> shape;
    std::vector<Py_ssize_t> strides_bytes;
    const ElementType* type = nullptr;
    bool readonly = false;
    bool pinned = false;
    std::string pinned_reason;  ///< why not, where it was asked for
};

/// The slots of the buffer protocol.
[[nodiscard]] PyType_Slot* buffer_slots();

/// A DLPack capsule; `versioned` for consumers that know DLPack 1.
[[nodiscard]] nb::object export_capsule(const BufferObject& buffer, bool versioned,
                                        bool copied = false);

}  // namespace penstock::python
