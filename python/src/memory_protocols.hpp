// SPDX-License-Identifier: Apache-2.0
// The protocols by which objects other than torch's give their memory, for borrowed_memory.cpp.
#pragma once

#include "borrowed_memory.hpp"

#include <optional>
#include <string>

namespace penstock::python {

/// The memory that may be borrowed: the host's alone, or a GPU's too, which is then used after
/// `stream`, if the caller gave one.
struct Reach {
    bool devices = false;
    std::optional<StreamHandle> stream = std::nullopt;
};

/// By __dlpack__ and __dlpack_device__.
[[nodiscard]] BorrowedMemory borrow_dlpack(nb::handle object, const std::string& argument,
                                           const Reach& reach);
/// By __cuda_array_interface__.
[[nodiscard]] BorrowedMemory borrow_cuda_array(nb::handle object, const std::string& argument,
                                               const Reach& reach);

/// Asks the driver whose memory it is: a GPU's, or the host's. Throws penstock's Error.
void locate(BorrowedMemory& memory, nb::handle object, const std::string& argument);

/// A framework whose arrays never change: others may look into the same memory, and compiled
/// programs rely on it. Of their types only some say that they are read-only.
struct ImmutableFramework {
    const char* name = nullptr;  ///< nullptr: none
    const char* maker = nullptr;
};
[[nodiscard]] ImmutableFramework immutable_framework(nb::handle object);

[[noreturn]] void raise_not_contiguous(const std::string& argument, nb::handle object,
                                       const std::string& layout);
/// `device`: where it is. Names what may be given instead.
[[noreturn]] void raise_device(const std::string& argument, nb::handle object,
                               const std::string& device, const Reach& reach);

}  // namespace penstock::python
