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

#include "state/box_runs.hpp"
#include "store/manifest/manifest.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace penstock::store {

/// Maximum size of a piece; a multiple of a chunk.
inline constexpr std::uint64_t kPieceBytesMax = std::uint64_t{8} << 20;

/// The wanted part of one slice, as runs.
class SlicePart : public state::BoxRuns {
public:
    /// A whole slice without a destination: to be verified.
    SlicePart(const Tensor& tensor, const Slice& slice)
        : SlicePart(tensor, slice, state::BoxRuns(slice.bytes)) {}
    /// The part of a box of `tensor` that `slice` holds: see BoxRuns::of().
    [[nodiscard]] static std::optional<SlicePart> of(const Tensor& tensor, const Slice& slice,
                                                     const state::TensorBox& box, Memory memory,
                                                     std::span<const std::uint64_t> strides_bytes);

    [[nodiscard]] const Tensor& tensor() const { return *tensor_; }
    [[nodiscard]] const Slice& slice() const { return *slice_; }

private:
    SlicePart(const Tensor& tensor, const Slice& slice, state::BoxRuns runs)
        : BoxRuns(std::move(runs)), tensor_(&tensor), slice_(&slice) {}

    const Tensor* tensor_;
    const Slice* slice_;
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
