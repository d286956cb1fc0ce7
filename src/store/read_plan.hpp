// SPDX-License-Identifier: Apache-2.0
// From a box of a tensor to reads of a file. Pure.
//
//   run     a part of the box that is contiguous both in the slice's file and in the caller's
//           memory; runs rise in the file
//   piece   one read. Chunks that one run covers whole go straight to the caller, many in one
//           piece. Any other chunk that is touched is read whole, once, into memory of ours, where
//           its sum is checked and the wanted bytes are copied out
//
// So a box along the first dimension costs itself and two chunks at most; along any other, the
// chunks that it touches.
#pragma once

#include "store/manifest.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock::store {

/// Maximum size of a piece; a multiple of a chunk.
inline constexpr std::uint64_t kPieceBytesMax = std::uint64_t{8} << 20;

/// The wanted part of one slice, as runs.
class SlicePart {
public:
    /// A whole slice without a destination: to be verified.
    SlicePart(const Tensor& tensor, const Slice& slice);
    /// The part of the box [begin, end) of `tensor` that `slice` holds; `memory` has the box, row-
    /// major or with strides as in TensorRead. Nothing if they do not meet. Throws kUnsupported if
    /// elements of less than a byte would have to be shifted.
    [[nodiscard]] static std::optional<SlicePart> of(const Tensor& tensor, const Slice& slice,
                                                     std::span<const std::uint64_t> begin,
                                                     std::span<const std::uint64_t> end,
                                                     std::byte* memory,
                                                     std::span<const std::uint64_t> strides_bytes);

    [[nodiscard]] const Tensor& tensor() const { return *tensor_; }
    [[nodiscard]] const Slice& slice() const { return *slice_; }
    [[nodiscard]] std::uint64_t runs() const { return runs_; }
    [[nodiscard]] std::uint64_t run_bytes() const { return run_bytes_; }
    /// The beginning of run i in the slice, in bytes, and in the caller's memory.
    [[nodiscard]] std::uint64_t source(std::uint64_t run) const;
    [[nodiscard]] std::byte* target(std::uint64_t run) const;
    /// The first run that ends after `offset` (in the slice); runs() if none does.
    [[nodiscard]] std::uint64_t run_behind(std::uint64_t offset) const;
    /// Copies the wanted bytes of a range of the slice to their destinations.
    void copy_out(std::uint64_t offset, std::span<const std::byte> bytes) const;

private:
    struct Dimension {  // outside a run
        std::uint64_t count;
        std::uint64_t source_step;
        std::uint64_t target_step;
    };
    const Tensor* tensor_;
    const Slice* slice_;
    std::byte* memory_ = nullptr;
    std::uint64_t source_ = 0;
    std::uint64_t target_ = 0;
    std::uint64_t run_bytes_ = 0;
    std::uint64_t runs_ = 1;
    std::vector<Dimension> outer_;
};

struct SlicePiece {
    std::size_t part = 0;
    std::uint64_t offset = 0;  ///< in the slice
    std::uint64_t bytes = 0;
    std::byte* memory = nullptr;  ///< the caller's; nullptr: ours
};

/// Appends the pieces of a part, in the order of the file. `exact`: reads only the wanted bytes
/// where nothing is verified, unless that makes many small reads.
void add_pieces(const SlicePart& part, std::size_t index, bool exact, std::vector<SlicePiece>& out);
/// Appends a whole slice, read into memory of ours.
void add_whole(const SlicePart& part, std::size_t index, std::vector<SlicePiece>& out);

}  // namespace penstock::store
