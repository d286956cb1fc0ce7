// SPDX-License-Identifier: Apache-2.0
// The memory of another object: of a torch tensor, of whatever has the buffer protocol
// (NumPy, bytearray, mmap, ...), DLPack (JAX, CuPy, ...) or __cuda_array_interface__ (Numba, ...),
// in that order, for the first two cost under a microsecond. torch is never imported: a tensor of
// it cannot come in before it was. Where an object says that its memory is a GPU's, the driver is
// asked which one's it is.
#pragma once

#include "nanobind.hpp"

#include <penstock/gpu.hpp>
#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

struct BorrowedMemory {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    MemoryKind where = MemoryKind::kHost;
    std::int32_t device = 0;  ///< of MemoryKind::kDevice: its number
    /// What has to be through before the memory is used, if the caller names no stream. Of
    /// MemoryKind::kDevice.
    StreamHandle stream = {};
    bool stream_is_named = false;  ///< by the object: it is waited for whatever stream is given
    bool readonly = false;
    char kind = 0;  ///< of its elements: 'i', 'u' for integers; of torch not looked at
    std::size_t item_bytes = 0;
    Keep keep;

    [[nodiscard]] Memory memory() const noexcept { return {data, bytes, where, device}; }
};

/// Host memory. Throws nb::value_error or nb::type_error, naming the argument, what came and what
/// is allowed.
[[nodiscard]] BorrowedMemory borrow(nb::handle object, const std::string& argument, bool writable);
/// Memory of the host or of a GPU. `stream`: the caller's, which DLPack is told. Throws penstock's
/// Error too: for memory of a GPU that the driver does not know, or that nothing reaches here.
[[nodiscard]] BorrowedMemory borrow_anywhere(nb::handle object, const std::string& argument,
                                             bool writable,
                                             const std::optional<StreamHandle>& stream);
/// torch's current stream of a GPU: what its operations are put on by this thread.
[[nodiscard]] StreamHandle torch_stream(std::int32_t device);
/// ROCm's tensors say that they are CUDA's; torch is imported already.
[[nodiscard]] bool torch_has_rocm();
/// Host memory to look at, with the kind of its elements, torch's too.
[[nodiscard]] BorrowedMemory borrow_elements(nb::handle object, const std::string& argument);

/// Shares it; the last share may be dropped by any thread, with or without the GIL.
[[nodiscard]] std::shared_ptr<void> share_of(Keep&& keep);

}  // namespace penstock::python
