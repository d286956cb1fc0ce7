// SPDX-License-Identifier: Apache-2.0
// penstock.Buffer: a shaped piece of host memory that speaks DLPack and the buffer protocol. Either
// memory of our pools (empty) or a view of another object's (as_bytes).
#pragma once

#include "nanobind.hpp"
#include "tensor/element_type.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock::python {

/// One that Python's frameworks have arrays of.
using ArrayType = tensor::ElementTypeRow;

/// From "float32", numpy.float32, numpy.dtype("float32"), torch.float32, ...
[[nodiscard]] const ArrayType& element_type(nb::handle dtype);
[[nodiscard]] const ArrayType& byte_type();

struct BufferObject {
    std::shared_ptr<void> owner;  ///< of the memory; may be shared with DLPack capsules
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::vector<std::int64_t> shape;
    std::vector<Py_ssize_t> strides_bytes;
    const ArrayType* type = nullptr;
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
