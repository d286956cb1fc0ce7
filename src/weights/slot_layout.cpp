// SPDX-License-Identifier: Apache-2.0
#include "weights/slot_layout.hpp"

#include "base/align.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace penstock::weights {

StoredTensor stored_tensor(std::vector<TensorStretch> stretches, std::uint64_t bytes,
                           std::uint64_t element_bytes) {
    StoredTensor out{.stretches = std::move(stretches), .bytes = bytes};
    if (out.stretches.size() == 1 && out.offset() % element_bytes == 0) {
        out.residue = out.offset() % kLineBytes;
    }
    return out;
}

std::vector<std::uint64_t> place_in_slot(std::span<const StoredTensor> tensors,
                                         std::span<const std::size_t> chosen) {
    std::vector<std::size_t> order(chosen.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const StoredTensor& x = tensors[chosen[a]];
        const StoredTensor& y = tensors[chosen[b]];
        return std::pair(x.file(), x.offset()) < std::pair(y.file(), y.offset());
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

}  // namespace penstock::weights
