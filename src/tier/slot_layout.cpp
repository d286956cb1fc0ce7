// SPDX-License-Identifier: Apache-2.0
#include "tier/slot_layout.hpp"

#include "base/align.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace penstock::tier {

StoredTensor stored_tensor(std::vector<TensorStretch> stretches, std::uint64_t bytes,
                           std::uint64_t element_bytes) {
    StoredTensor out{.stretches = std::move(stretches), .bytes = bytes};
    if (out.stretches.size() == 1 && out.offset() % element_bytes == 0) {
        out.residue = out.offset() % kLineBytes;
    }
    return out;
}

namespace {

bool is_before_in_files(const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.file(), a.offset()) < std::pair(b.file(), b.offset());
}

}  // namespace

std::vector<std::uint64_t> place_in_slot(std::span<const StoredTensor> tensors,
                                         std::span<const std::size_t> chosen) {
    std::vector<std::size_t> order(chosen.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return is_before_in_files(tensors[chosen[a]], tensors[chosen[b]]);
    });
    std::vector<std::uint64_t> places(chosen.size());
    std::uint64_t end = 0;
    for (const std::size_t i : order) {
        const StoredTensor& tensor = tensors[chosen[i]];
        // Tensors that adjoin in the file adjoin here.
        const std::uint64_t skipped = (tensor.offset() - end) % base::kPageBytes;
        places[i] =
            tensor.keeps_place() ? end + skipped : base::align_up(end, kLineBytes) + tensor.residue;
        end = places[i] + tensor.bytes;
    }
    return places;
}

ImageLayout lay_out_image(std::span<const StoredTensor> tensors,
                          std::span<const std::uint64_t> file_bytes) {
    ImageLayout out;
    std::vector<std::uint64_t> begins;  // of each file: where its first byte would be
    for (const std::uint64_t bytes : file_bytes) {
        begins.push_back(out.bytes);
        out.bytes = base::align_up(out.bytes + bytes, base::kPageBytes);
    }
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return is_before_in_files(tensors[a], tensors[b]);
    });
    out.places.resize(tensors.size());
    std::uint64_t taken = 0;  // up to here, of the part that is like the files
    for (const std::size_t i : order) {
        const StoredTensor& tensor = tensors[i];
        const bool is_like_file = tensor.keeps_place() && tensor.stretches.size() == 1;
        const std::uint64_t in_file = is_like_file ? begins[tensor.file()] + tensor.offset() : 0;
        if (is_like_file && in_file >= taken) {
            out.places[i] = in_file;
            taken = in_file + tensor.bytes;
        } else {
            out.places[i] =
                out.bytes + (is_like_file ? in_file % base::kPageBytes : tensor.residue);
            out.bytes = base::align_up(out.places[i] + tensor.bytes, base::kPageBytes);
        }
    }
    return out;
}

ImageLayout lay_out_apart(std::span<const StoredTensor> tensors) {
    ImageLayout out;
    for (const StoredTensor& tensor : tensors) {
        const std::uint64_t in_page =
            tensor.keeps_place() ? tensor.offset() % base::kPageBytes : tensor.residue;
        out.places.push_back(out.bytes + in_page);
        out.bytes = base::align_up(out.places.back() + tensor.bytes, base::kPageBytes);
    }
    return out;
}

}  // namespace penstock::tier
