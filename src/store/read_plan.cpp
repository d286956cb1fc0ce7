// SPDX-License-Identifier: Apache-2.0
#include "store/read_plan.hpp"

#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace penstock::store {

namespace {

// Below this a run is not worth a request of its own.
constexpr std::uint64_t kExactRunBytesMin = std::uint64_t{64} << 10;

// Converts elements to bytes; nothing if they are no whole number of bytes.
class Scale {
public:
    explicit Scale(std::uint64_t bits) : bits_(bits) {}
    std::uint64_t operator()(std::uint64_t elements) {
        const std::uint64_t bits = elements * bits_;  // no overflow: the elements lie in a tensor
        whole_ = whole_ && bits % 8 == 0;
        return bits / 8;
    }
    [[nodiscard]] bool whole() const { return whole_; }

private:
    std::uint64_t bits_;
    bool whole_ = true;
};

}  // namespace

SlicePart::SlicePart(const Tensor& tensor, const Slice& slice)
    : tensor_(&tensor), slice_(&slice), run_bytes_(slice.bytes) {}

std::optional<SlicePart> SlicePart::of(const Tensor& tensor, const Slice& slice,
                                       std::span<const std::uint64_t> begin,
                                       std::span<const std::uint64_t> end, std::byte* memory,
                                       std::span<const std::uint64_t> strides_bytes) {
    const std::size_t rank = tensor.shape.size();
    SlicePart part(tensor, slice);
    part.memory_ = memory;
    Scale bytes(tensor::bits_of(*format::safetensors::type_named(tensor.dtype)));
    std::uint64_t source_step = 1;  // elements from one index to the next, in the slice
    std::uint64_t target_step = 1;  // likewise, in the box
    std::uint64_t source = 0;
    std::uint64_t target = 0;
    std::uint64_t strided = 0;  // bytes, in place of `target`
    std::uint64_t run = 1;
    bool in_run = true;
    for (std::size_t d = rank; d-- > 0;) {
        const std::uint64_t low = std::max(begin[d], slice.offset[d]);
        const std::uint64_t high = std::min(end[d], slice.offset[d] + slice.shape[d]);
        if (low >= high) {
            return std::nullopt;
        }
        const std::uint64_t count = high - low;
        source += (low - slice.offset[d]) * source_step;
        if (strides_bytes.empty()) {
            target += (low - begin[d]) * target_step;
        } else {
            strided += (low - begin[d]) * strides_bytes[d];
            in_run = in_run && (count == 1 || strides_bytes[d] == bytes(run));
        }
        if (in_run) {
            run *= count;
        } else if (count > 1) {
            part.outer_.push_back({count, bytes(source_step),
                                   strides_bytes.empty() ? bytes(target_step) : strides_bytes[d]});
            part.runs_ *= count;
        }
        in_run = in_run && count == slice.shape[d] && count == end[d] - begin[d];
        source_step *= slice.shape[d];
        target_step *= end[d] - begin[d];
    }
    part.source_ = bytes(source);
    part.target_ = bytes(target) + strided;
    part.run_bytes_ = bytes(run);
    if (!bytes.whole()) {
        base::raise(base::error(ErrorCode::kUnsupported, "read checkpoint",
                                fmt::format("tensor {} of {}: what is wanted begins or ends inside "
                                            "a byte; read whole rows",
                                            format::shown(tensor.name), tensor.dtype)));
    }
    return part;
}

std::uint64_t SlicePart::source(std::uint64_t run) const {
    std::uint64_t at = source_;
    for (const Dimension& d : outer_) {  // the innermost first
        at += run % d.count * d.source_step;
        run /= d.count;
    }
    return at;
}

std::byte* SlicePart::target(std::uint64_t run) const {
    std::uint64_t at = target_;
    for (const Dimension& d : outer_) {
        at += run % d.count * d.target_step;
        run /= d.count;
    }
    return memory_ + at;
}

std::uint64_t SlicePart::run_behind(std::uint64_t offset) const {
    std::uint64_t low = 0;
    std::uint64_t high = runs_;
    while (low < high) {
        const std::uint64_t middle = low + (high - low) / 2;
        if (source(middle) + run_bytes_ > offset) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

void SlicePart::copy_out(std::uint64_t offset, std::span<const std::byte> bytes) const {
    const std::uint64_t end = offset + bytes.size();
    for (std::uint64_t run = run_behind(offset); run < runs_; ++run) {
        const std::uint64_t begin = source(run);
        if (begin >= end) {
            return;
        }
        const std::uint64_t from = std::max(begin, offset);
        const std::uint64_t to = std::min(begin + run_bytes_, end);
        std::memcpy(target(run) + (from - begin), bytes.data() + (from - offset), to - from);
    }
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
