// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors.hpp"

#include "base/align.hpp"
#include "format/json.hpp"
#include "format/utf8.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory_resource>
#include <numeric>
#include <unordered_set>

namespace penstock::format::safetensors {

namespace {

constexpr std::string_view kWriting = "write safetensors";
constexpr std::uint64_t kLargeDataBytes = base::kMiB;
constexpr std::uint64_t kSmallAlignment = 64;
// Size of a tensor in the header. Reserved at once: a text that grows by doubling is copied, and
// faults in memory.
constexpr std::size_t kEntryBytesGuess = 112;
constexpr int kAlignmentShiftMax = 12;  // 4 KiB

using tensor::ElementType;

int alignment_shift(std::uint64_t bytes) {
    return std::min(std::countr_zero(bytes), kAlignmentShiftMax);  // of 0: 64
}

}  // namespace

std::string header_text(const std::vector<Tensor>& tensors, const std::vector<std::size_t>& order,
                        const Metadata& metadata) {
    std::string out;
    out.reserve(tensors.size() * kEntryBytesGuess);
    out += '{';
    if (!metadata.empty()) {
        out += "\"__metadata__\":{";
        for (const auto& [key, value] : metadata) {
            append_json_string(out, key);
            out += ':';
            append_json_string(out, value);
            out += ',';
        }
        out.back() = '}';
        out += ',';
    }
    for (const std::size_t i : order) {
        const Tensor& t = tensors[i];
        append_json_string(out, t.name);
        out += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                           safetensors::name_of(t.type), fmt::join(t.shape, ","), t.begin, t.end);
    }
    if (out.back() == ',') {
        out.pop_back();
    }
    out += '}';
    return out;
}

namespace {

Result<void> check_metadata(const Metadata& metadata) {
    std::unordered_set<std::string_view> keys;
    for (const auto& [key, value] : metadata) {
        if (!is_utf8(key) || !is_utf8(value)) {
            return fault(kWriting, fmt::format("metadata {}: it is not UTF-8", shown(key)));
        }
        if (!keys.insert(key).second) {
            return fault(kWriting, fmt::format("metadata {} comes twice", shown(key)));
        }
    }
    return {};
}

Result<void> check_tensors(std::vector<Tensor>& tensors) {
    std::pmr::monotonic_buffer_resource nodes;
    std::pmr::unordered_set<std::string_view> names(&nodes);
    names.reserve(tensors.size());
    std::uint64_t total = 0;
    for (Tensor& t : tensors) {
        if (t.name == "__metadata__" || !is_utf8(t.name)) {
            return fault(kWriting, fmt::format("tensor {}: the format does not allow this name",
                                               shown(t.name)));
        }
        if (!names.insert(t.name).second) {
            return fault(kWriting, fmt::format("tensor {} comes twice", shown(t.name)));
        }
        if (safetensors::name_of(t.type).empty()) {
            return fault(kWriting, fmt::format("tensor {}: the format has no name for its type; "
                                               "save it as .pt, or convert it",
                                               shown(t.name)));
        }
        const auto bytes = bytes_of(t.type, t.shape);
        const auto sum = bytes ? base::checked_add(total, *bytes) : std::nullopt;
        if (!sum || t.shape.size() > kRankMax || *sum > (std::uint64_t{1} << 62)) {
            return fault(kWriting, fmt::format("tensor {}: shape [{}] of {} is not a possible size",
                                               shown(t.name), fmt::join(t.shape, ", "),
                                               safetensors::name_of(t.type)));
        }
        total = *sum;
        t.end = *bytes;  // a size; the caller makes it an offset after sorting
    }
    return {};
}

std::string padded_header(std::string_view json, std::uint64_t data_begin) {
    const std::uint64_t n = data_begin - 8;
    std::string head;
    head.reserve(data_begin);
    head.resize(8);
    std::memcpy(head.data(), &n, 8);  // little-endian, as the one architecture we support
    head += json;
    head.resize(data_begin, ' ');
    return head;
}

}  // namespace

std::string_view name_of(ElementType type) {
    const auto& row = tensor::row_of(type);
    return row.in_safetensors ? row.name : std::string_view();
}

std::optional<ElementType> type_named(std::string_view name) {
    const auto* found = tensor::find_row(
        [name](const auto& row) { return row.in_safetensors && row.name == name; });
    return found != nullptr ? std::optional(found->type) : std::nullopt;
}

Result<Layout> Layout::make(std::vector<Tensor> tensors, const Metadata& metadata,
                            const LayoutOptions& options) {
    PENSTOCK_CHECK(check_metadata(metadata));
    PENSTOCK_CHECK(check_tensors(tensors));
    Layout layout;
    layout.tensors_ = std::move(tensors);
    auto& all = layout.tensors_;
    layout.order_.resize(all.size());
    std::iota(layout.order_.begin(), layout.order_.end(), std::size_t{0});
    if (options.data_begin == 0) {
        std::stable_sort(layout.order_.begin(), layout.order_.end(),
                         [&](std::size_t a, std::size_t b) {
                             return alignment_shift(all[a].end) > alignment_shift(all[b].end);
                         });
    }
    std::uint64_t data_bytes = 0;
    for (const std::size_t i : layout.order_) {
        all[i].begin = data_bytes;
        data_bytes += all[i].end;
        all[i].end = data_bytes;
    }
    std::string json = header_text(all, layout.order_, metadata);
    const std::uint64_t alignment =
        data_bytes >= kLargeDataBytes ? base::kPageBytes : kSmallAlignment;
    if (json.size() > kHeaderBytesMax || options.reserve_bytes > kHeaderBytesMax) {
        return fault(kWriting, fmt::format("the header would have {} bytes and {} in reserve; the "
                                           "format allows {}: save fewer tensors in a file",
                                           json.size(), options.reserve_bytes, kHeaderBytesMax));
    }
    layout.data_begin_ =
        options.data_begin != 0
            ? options.data_begin
            : base::align_up(8 + json.size() + kPaddingMin + options.reserve_bytes, alignment);
    if (8 + json.size() + kPaddingMin > layout.data_begin_) {
        return fault(kWriting, fmt::format("the header has {} bytes, and there is room for {}",
                                           json.size(), layout.data_begin_ - 8 - kPaddingMin));
    }
    if (layout.data_begin_ - 8 > kHeaderBytesMax) {
        return fault(kWriting, fmt::format("the header would have {} bytes; the format allows {}: "
                                           "save fewer tensors in a file",
                                           layout.data_begin_ - 8, kHeaderBytesMax));
    }
    layout.file_.literal(padded_header(json, layout.data_begin_));
    for (const std::size_t i : layout.order_) {
        layout.file_.payload(i, all[i].end - all[i].begin);
    }
    return layout;
}

Result<void> Layout::set_metadata(const Metadata& metadata) {
    PENSTOCK_CHECK(check_metadata(metadata));
    std::string json = header_text(tensors_, order_, metadata);
    if (json.size() > data_begin_ - 8 - kPaddingMin) {
        return fault(kWriting,
                     fmt::format("the header has room for {} bytes and would need {}; reserve more",
                                 data_begin_ - 8 - kPaddingMin, json.size()));
    }
    file_.patch(0, padded_header(json, data_begin_));
    return {};
}

}  // namespace penstock::format::safetensors
