// SPDX-License-Identifier: Apache-2.0
// CUDA streams as Python gives them.
#pragma once

#include "borrowed_memory.hpp"
#include "nanobind.hpp"

#include <penstock/gpu.hpp>
#include <penstock/types.hpp>

#include <optional>
#include <span>

namespace penstock::python {

/// A handle (int), or an object with __cuda_stream__ or cuda_stream. None: nothing. Throws
/// nb::type_error or nb::value_error.
[[nodiscard]] std::optional<StreamHandle> stream_of(nb::handle stream);

/// Blocks until what the streams hold is done. To be called without the GIL.
void wait_for_streams(std::span<const StreamHandle> streams);

/// The streams that a transfer begins after: the caller's, or those that its memory came with.
class Streams {
public:
    Streams(nb::handle stream, TransferOptions& options);

    /// Memory that the transfer moves.
    void add(const BorrowedMemory& memory);
    [[nodiscard]] const std::optional<StreamHandle>& given() const noexcept { return given_; }
    /// After the last memory. Throws nb::value_error where the caller's stream orders nothing.
    void check() const;

private:
    TransferOptions& options_;
    std::optional<StreamHandle> given_;
    bool on_device_ = false;
    bool on_host_ = false;
};

}  // namespace penstock::python
