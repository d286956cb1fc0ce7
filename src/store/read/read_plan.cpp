// SPDX-License-Identifier: Apache-2.0
#include "store/read/read_plan.hpp"

#include <algorithm>
#include <utility>

namespace penstock::store {

namespace {

// Below this a run is not worth a request of its own.
constexpr std::uint64_t kExactRunBytesMin = std::uint64_t{64} << 10;

}  // namespace

std::optional<SlicePart> SlicePart::of(const Tensor& tensor, const Slice& slice,
                                       const state::TensorBox& box, Memory memory,
                                       std::span<const std::uint64_t> strides_bytes) {
    auto runs = BoxRuns::of({tensor.name, tensor.dtype, slice.shape, slice.offset}, box, memory,
                            strides_bytes, "read checkpoint");
    return runs ? std::optional(SlicePart(tensor, slice, std::move(*runs))) : std::nullopt;
}

void add_pieces(const SlicePart& part, std::size_t index, bool exact,
                std::vector<SlicePiece>& out) {
    const std::uint64_t slice_bytes = part.slice().bytes;
    if (part.run_bytes() == 0) {
        return;
    }
    exact = exact && (part.runs() == 1 || part.run_bytes() >= kExactRunBytesMin);
    const auto cut = [&](std::uint64_t begin, std::uint64_t end, std::byte* memory) {
        for (std::uint64_t at = begin; at < end; at += kPieceBytesMax) {
            out.push_back({index, at, std::min(kPieceBytesMax, end - at), memory + (at - begin)});
        }
    };
    std::uint64_t covered = 0;  // chunks before this offset are in pieces already
    for (std::uint64_t run = 0; run < part.runs();) {
        const std::uint64_t begin = part.source(run);
        const std::uint64_t end = begin + part.run_bytes();
        if (exact) {
            cut(begin, end, part.target(run));
            ++run;
            continue;
        }
        for (std::uint64_t at = std::max(begin, covered); at < end;) {
            const std::uint64_t chunk = at / kChunkBytes * kChunkBytes;
            const std::uint64_t chunk_end = std::min(chunk + kChunkBytes, slice_bytes);
            if (at == chunk && end >= chunk_end) {
                covered = end == slice_bytes ? end : end / kChunkBytes * kChunkBytes;
                cut(at, covered, part.target(run) + (at - begin));
            } else {
                covered = chunk_end;
                out.push_back({index, chunk, chunk_end - chunk, nullptr});
            }
            at = covered;
        }
        run = part.run_behind(covered);
    }
}

void add_whole(const SlicePart& part, std::size_t index, std::vector<SlicePiece>& out) {
    const std::uint64_t bytes = part.slice().bytes;
    for (std::uint64_t at = 0; at < bytes; at += kPieceBytesMax) {
        out.push_back({index, at, std::min(kPieceBytesMax, bytes - at), nullptr});
    }
}

}  // namespace penstock::store
