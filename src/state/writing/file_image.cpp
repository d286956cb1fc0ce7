// SPDX-License-Identifier: Apache-2.0
#include "state/writing/file_image.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/zip/crc32.hpp"
#include "state/sum_table.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace penstock::state {

namespace {

namespace safetensors_format = format::safetensors;
using format::torch_file::Layout;

std::vector<safetensors_format::Tensor> by_data(std::vector<safetensors_format::Tensor> tensors) {
    std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    return tensors;
}

// Reads the header again, from the bytes that will be in the file.
void check_header(const safetensors_format::Layout& layout,
                  const safetensors_format::Metadata& metadata) {
    const std::string_view text = layout.file().literals();
    const auto header = base::unwrap(safetensors_format::read_header(
        std::as_bytes(std::span(text.data(), text.size())), layout.file().total_bytes()));
    const auto given = by_data(layout.tensors());
    const bool same = header.data_begin == layout.data_begin() && header.metadata == metadata &&
                      std::equal(given.begin(), given.end(), header.tensors.begin(),
                                 header.tensors.end(), [](const auto& a, const auto& b) {
                                     return std::tie(a.name, a.type, a.shape, a.begin, a.end) ==
                                            std::tie(b.name, b.type, b.shape, b.begin, b.end);
                                 });
    if (!same) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "write safetensors",
                                "its header would not come back as it is"));
    }
}

}  // namespace

FileImage FileImage::torch_zip(format::ValueTree tree, const std::string& folder,
                               std::vector<Payload> payloads,
                               const format::PickleOptions& options) {
    PENSTOCK_ASSERT(payloads.size() == tree.storages.size());
    for (std::size_t i = 0; i < payloads.size(); ++i) {
        PENSTOCK_ASSERT(payloads[i].bytes == tree.storages[i].bytes);
    }
    FileImage image;
    image.layout_ = base::unwrap(Layout::make(tree, folder, options));
    image.tree_ = std::move(tree);
    image.payloads_ = std::move(payloads);
    image.piece_bytes_ = stream::kCrcPieceBytes;
    return image;
}

FileImage FileImage::safetensors(std::vector<safetensors_format::Tensor> tensors,
                                 safetensors_format::Metadata metadata,
                                 std::vector<Payload> payloads, bool checksums,
                                 const WrittenData& written) {
    FileImage image;
    PENSTOCK_ASSERT(payloads.size() == tensors.size());
    std::uint64_t pieces = 0;
    std::uint64_t total = 0;
    for (const Payload& payload : payloads) {
        total += payload.bytes;
    }
    std::erase_if(metadata, [](const auto& entry) { return entry.first == kSumTableKey; });
    if (checksums && !payloads.empty()) {
        image.piece_bytes_ = written.begin != 0 ? written.piece_bytes : table_piece_bytes(total);
        for (const Payload& payload : payloads) {
            pieces += (payload.bytes + image.piece_bytes_ - 1) / image.piece_bytes_;
        }
        // Reserves room for the table: its length does not depend on the sums.
        metadata.emplace_back(kSumTableKey, render_sum_table({}, 0, image.piece_bytes_,
                                                             std::vector<std::uint64_t>(pieces)));
        image.sums_.resize(payloads.size());
        image.sums_missing_ = payloads.size();
    }
    auto layout = base::unwrap(safetensors_format::Layout::make(std::move(tensors), metadata,
                                                                {.data_begin = written.begin}));
    for (std::size_t i = 0; i < payloads.size(); ++i) {
        const auto& t = layout.tensors()[i];
        PENSTOCK_ASSERT(payloads[i].bytes == t.end - t.begin);
    }
    check_header(layout, metadata);
    image.layout_ = std::move(layout);
    image.metadata_ = std::move(metadata);
    image.payloads_ = std::move(payloads);
    return image;
}

const format::FileLayout& FileImage::file() const {
    return std::visit([](const auto& layout) -> const format::FileLayout& { return layout.file(); },
                      layout_);
}

std::uint64_t FileImage::payload_bytes() const {
    return std::accumulate(payloads_.begin(), payloads_.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const Payload& p) { return sum + p.bytes; });
}

void FileImage::replace_payloads(std::vector<Payload> payloads) {
    PENSTOCK_ASSERT(payloads.size() == payloads_.size());
    for (std::size_t i = 0; i < payloads.size(); ++i) {
        PENSTOCK_ASSERT(payloads[i].bytes == payloads_[i].bytes);
    }
    payloads_ = std::move(payloads);
}

std::string FileImage::name_of(std::size_t payload) const {
    if (const auto* file = std::get_if<safetensors_format::Layout>(&layout_)) {
        return fmt::format("tensor {}", format::shown(file->tensors()[payload].name));
    }
    for (format::ValueId id = 0; id < tree_.values.size(); ++id) {
        const format::Value& value = tree_.values[id];
        if (value.kind == format::ValueKind::kTensor &&
            tree_.tensors[static_cast<std::size_t>(value.integer)].storage == payload) {
            return format::place_of(tree_, id);
        }
    }
    return fmt::format("storage {}", payload);
}

bool FileImage::takes_cuts() const {
    return std::holds_alternative<Layout>(layout_);
}

std::uint64_t FileImage::hash(std::span<const std::byte> piece) const {
    return std::holds_alternative<Layout>(layout_) ? format::crc32(piece)
                                                   : stream::content_hash(piece);
}

std::vector<std::size_t> FileImage::sums_in(format::FileRange range) const {
    if (const Layout* zip = std::get_if<Layout>(&layout_)) {
        return zip->crcs_in(range);
    }
    std::vector<std::size_t> out;
    if (piece_bytes_ != 0 &&
        range.begin < std::get<safetensors_format::Layout>(layout_).data_begin()) {
        out.resize(payloads_.size());
        std::iota(out.begin(), out.end(), std::size_t{0});
    }
    return out;
}

void FileImage::set_sums(std::size_t payload, std::span<const std::uint64_t> sums,
                         std::span<const std::uint64_t> bytes) {
    if (Layout* zip = std::get_if<Layout>(&layout_)) {
        std::uint32_t crc = 0;
        for (std::size_t i = 0; i < sums.size(); ++i) {
            crc = format::crc32_combine(crc, static_cast<std::uint32_t>(sums[i]), bytes[i]);
        }
        zip->set_crc(payload, crc);
        return;
    }
    sums_[payload].assign(sums.begin(), sums.end());
    if (sums_missing_ == 0) {
        sums_missing_ = payloads_.size();  // it may be written once more
    }
    if (--sums_missing_ != 0) {
        return;
    }
    auto& layout = std::get<safetensors_format::Layout>(layout_);
    const auto& given = layout.tensors();
    std::vector<std::size_t> order(given.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(given[a].begin, given[a].end) < std::pair(given[b].begin, given[b].end);
    });
    std::vector<std::uint64_t> all;
    for (const std::size_t i : order) {
        all.insert(all.end(), sums_[i].begin(), sums_[i].end());
    }
    metadata_.back().second =
        render_sum_table(by_data(given), layout.data_begin(), piece_bytes_, all);
    base::unwrap(layout.set_metadata(metadata_));
    check_header(layout, metadata_);
}

}  // namespace penstock::state
