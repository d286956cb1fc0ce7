// SPDX-License-Identifier: Apache-2.0
#include "state/box_runs.hpp"

#include "base/planted.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "tensor/element_type.hpp"

#include <penstock/gpu.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock::state {

namespace {

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

struct Call {
    const char* operation;
    const std::string& path;

    [[noreturn]] void refuse(std::string_view why) const {
        base::raise(base::error(ErrorCode::kInvalidArgument, operation, why, path));
    }
};

std::uint64_t bits_of(const StoredShape& tensor) {
    return tensor::bits_of(*element_type_named(tensor.dtype));
}

// Checks that elements with these strides fit the given memory and do not overlap: from the
// smallest stride up, each step passes everything that the smaller ones reach.
void check_strides(const TensorRead& wanted, const StoredShape& tensor, const TensorBox& box,
                   const Call& call) {
    const std::uint64_t bits = bits_of(tensor);
    const std::uint64_t elements = box.elements();
    const std::vector<std::uint64_t>& strides = wanted.strides_bytes;
    if (bits % 8 != 0 || strides.size() != box.begin.size()) {
        call.refuse(fmt::format(
            "tensor {} is {} of {} dimensions, and {} strides are given; give "
            "one for each, and none where elements are less than a byte",
            format::shown(wanted.name), tensor.dtype, box.begin.size(), strides.size()));
    }
    std::vector<std::pair<std::uint64_t, std::uint64_t>> steps;  // stride, extent
    for (std::size_t d = 0; d < strides.size(); ++d) {
        if (box.end[d] - box.begin[d] > 1) {
            steps.emplace_back(strides[d], box.end[d] - box.begin[d]);
        }
    }
    std::sort(steps.begin(), steps.end());
    std::uint64_t reach = elements == 0 ? 0 : bits / 8;
    bool sound = true;
    for (const auto& [stride, extent] : steps) {
        std::uint64_t more = 0;
        sound = sound && stride >= reach && !__builtin_mul_overflow(stride, extent - 1, &more) &&
                !__builtin_add_overflow(reach, more, &reach);
    }
    if (elements > 0 && (!sound || reach != wanted.into.bytes)) {
        call.refuse(fmt::format(
            "of tensor {} {} elements of {} are wanted with strides of [{}] "
            "bytes, which {} the {} bytes that are given for them",
            format::shown(wanted.name), elements, tensor.dtype, fmt::join(strides, ", "),
            sound ? "do not end with" : "overlap, or do not fit in", wanted.into.bytes));
    }
}

}  // namespace

TensorBox checked_box(const TensorRead& wanted, const StoredShape& tensor, const char* operation,
                      const std::string& path) {
    const Call call{operation, path};
    if (wanted.into.data == nullptr && wanted.into.bytes != 0) {
        call.refuse(fmt::format("the {} bytes for tensor {} have no memory (null pointer)",
                                wanted.into.bytes, format::shown(wanted.name)));
    }
    if (wanted.into.kind != MemoryKind::kHost && !wanted.strides_bytes.empty()) {
        base::raise(base::error(
            ErrorCode::kUnsupported, operation,
            fmt::format("tensor {}: memory of GPU {} was given with strides, and takes none; read "
                        "into memory without gaps, and copy it on the GPU",
                        format::shown(wanted.name), wanted.into.device),
            path));
    }
    auto box = inside({wanted.begin, wanted.end}, tensor.shape, wanted.name);
    if (!box) {
        call.refuse(box.error().message);
    }
    const std::uint64_t elements = box->elements();
    const std::uint64_t bits = elements * bits_of(tensor);
    if (!wanted.strides_bytes.empty()) {
        check_strides(wanted, tensor, *box, call);
    } else if (bits % 8 != 0 || bits / 8 != wanted.into.bytes) {
        call.refuse(
            fmt::format("of tensor {} {} elements of {} are wanted, which do not fill the "
                        "{} bytes that are given for them",
                        format::shown(wanted.name), elements, tensor.dtype, wanted.into.bytes));
    }
    return std::move(*box);
}

std::optional<BoxRuns> BoxRuns::of(const StoredShape& stored, const TensorBox& box, Memory memory,
                                   std::span<const std::uint64_t> strides_bytes,
                                   const char* operation) {
    const std::size_t rank = stored.shape.size();
    BoxRuns part;
    part.memory_ = memory;
    Scale bytes(tensor::bits_of(*element_type_named(stored.dtype)));
    std::uint64_t source_step = 1;  // elements from one index to the next, in the slice
    std::uint64_t target_step = 1;  // likewise, in the box
    std::uint64_t source = 0;
    std::uint64_t target = 0;
    std::uint64_t strided = 0;  // bytes, in place of `target`
    std::uint64_t run = 1;
    bool in_run = true;
    for (std::size_t d = rank; d-- > 0;) {
        const std::uint64_t first = stored.offset.empty() ? 0 : stored.offset[d];
        const std::uint64_t low = std::max(box.begin[d], first);
        const std::uint64_t high = std::min(box.end[d], first + stored.shape[d]);
        if (low >= high) {
            return std::nullopt;
        }
        const std::uint64_t count = high - low;
        source += (low - first) * source_step;
        if (strides_bytes.empty()) {
            target += (low - box.begin[d]) * target_step;
        } else {
            strided += (low - box.begin[d]) * strides_bytes[d];
            in_run = in_run && (count == 1 || strides_bytes[d] == bytes(run));
        }
        if (in_run) {
            run *= count;
        } else if (count > 1) {
            part.outer_.push_back({count, bytes(source_step),
                                   strides_bytes.empty() ? bytes(target_step) : strides_bytes[d]});
            part.runs_ *= count;
        }
        in_run = in_run && count == stored.shape[d] && count == box.end[d] - box.begin[d];
        source_step *= stored.shape[d];
        target_step *= box.end[d] - box.begin[d];
    }
    part.source_ = bytes(source != 0 && base::planted("slice_offset") ? source - 1 : source);
    part.target_ = bytes(target) + strided;
    part.run_bytes_ = bytes(run);
    if (!bytes.whole()) {
        base::raise(base::error(ErrorCode::kUnsupported, operation,
                                fmt::format("tensor {} of {}: what is wanted begins or ends inside "
                                            "a byte; read whole rows",
                                            format::shown(stored.name), stored.dtype)));
    }
    return part;
}

std::uint64_t BoxRuns::source(std::uint64_t run) const {
    std::uint64_t at = source_;
    for (const Dimension& d : outer_) {  // the innermost first
        at += run % d.count * d.source_step;
        run /= d.count;
    }
    return at;
}

std::byte* BoxRuns::target(std::uint64_t run) const {
    std::uint64_t at = target_;
    for (const Dimension& d : outer_) {
        at += run % d.count * d.target_step;
        run /= d.count;
    }
    return memory_.data + at;
}

std::uint64_t BoxRuns::run_behind(std::uint64_t offset) const {
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

void BoxRuns::copy_out(std::uint64_t offset, std::span<const std::byte> bytes) const {
    const std::uint64_t end = offset + bytes.size();
    std::vector<MemoryCopy> copies;  // to a GPU
    for (std::uint64_t run = run_behind(offset); run < runs_; ++run) {
        const std::uint64_t begin = source(run);
        if (begin >= end) {
            break;
        }
        const std::uint64_t from = std::max(begin, offset);
        const std::uint64_t to = std::min(begin + run_bytes_, end);
        const Memory into = place(target(run) + (from - begin), to - from);
        const std::span<const std::byte> piece = bytes.subspan(from - offset, to - from);
        if (into.kind == MemoryKind::kHost) {
            std::memcpy(into.data, piece.data(), piece.size());
        } else {
            copies.push_back({into, piece});
        }
    }
    if (!copies.empty()) {
        copy_memory(copies);
    }
}

}  // namespace penstock::state
