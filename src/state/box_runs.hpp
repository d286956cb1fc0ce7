// SPDX-License-Identifier: Apache-2.0
// A box of a tensor as runs: parts that are contiguous both in the file and in the caller's memory.
// Runs rise in the file. Pure.
#pragma once

#include "state/selection.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::state {

/// A tensor in a file, row-major without gaps.
struct StoredShape {
    std::string_view name;
    std::string_view dtype;  ///< of safetensors or torch
    std::span<const std::uint64_t> shape;
    std::span<const std::uint64_t> offset = {};  ///< elements, of a slice in its tensor; or none
};

/// The box that is wanted, with bounds for each dimension: it lies in the tensor, and its elements
/// fill the memory. Throws Error kInvalidArgument or kUnsupported with `operation` and `path`.
[[nodiscard]] TensorBox checked_box(const TensorRead& wanted, const StoredShape& tensor,
                                    const char* operation, const std::string& path);

class BoxRuns {
public:
    /// All bytes without a destination: to be verified.
    explicit BoxRuns(std::uint64_t bytes) : run_bytes_(bytes) {}
    /// The part of the box that `stored` holds; `memory` has the box, row-major or with strides as
    /// in TensorRead. Nothing if they do not meet. Throws kUnsupported if elements of less than a
    /// byte would have to be shifted.
    [[nodiscard]] static std::optional<BoxRuns> of(const StoredShape& stored, const TensorBox& box,
                                                   Memory memory,
                                                   std::span<const std::uint64_t> strides_bytes,
                                                   const char* operation);

    [[nodiscard]] std::uint64_t runs() const { return runs_; }
    [[nodiscard]] std::uint64_t run_bytes() const { return run_bytes_; }
    /// The beginning of run i in the stored bytes, and in the caller's memory.
    [[nodiscard]] std::uint64_t source(std::uint64_t run) const;
    [[nodiscard]] std::byte* target(std::uint64_t run) const;
    /// The first run that ends after `offset` (in the stored bytes); runs() if none does.
    [[nodiscard]] std::uint64_t run_behind(std::uint64_t offset) const;
    /// Memory at an address that target() gave, or behind it: of the host or of a GPU.
    [[nodiscard]] Memory place(std::byte* at, std::uint64_t bytes) const {
        return {at, bytes, memory_.kind, memory_.device};
    }
    /// Copies the wanted bytes of a range of the stored bytes to their destinations. Throws Error
    /// as copy_memory() where those are a GPU's.
    void copy_out(std::uint64_t offset, std::span<const std::byte> bytes) const;

private:
    struct Dimension {  // outside a run
        std::uint64_t count;
        std::uint64_t source_step;
        std::uint64_t target_step;
    };
    BoxRuns() = default;

    Memory memory_;
    std::uint64_t source_ = 0;
    std::uint64_t target_ = 0;
    std::uint64_t run_bytes_ = 0;
    std::uint64_t runs_ = 1;
    std::vector<Dimension> outer_;
};

}  // namespace penstock::state
