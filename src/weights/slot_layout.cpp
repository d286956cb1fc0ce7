// SPDX-License-Identifier: Apache-2.0
#include "weights/slot_layout.hpp"

#include "base/align.hpp"

#include <algorithm>
#include <numeric>

namespace penstock::weights {

namespace {

constexpr std::uint64_t kMovedAlign = 64;  // a cache line, and what torch gives its own tensors

const TensorStretch& place_of(const StoredTensor& tensor) {
    static const TensorStretch kNowhere;
    return tensor.stretches.empty() ? kNowhere : tensor.stretches[0];
}

}  // namespace

std::vector<std::uint64_t> place_in_slot(std::span<const StoredTensor> tensors,
                                         std::span<const std::size_t> chosen) {
    std::vector<std::size_t> order(chosen.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const TensorStretch& x = place_of(tensors[chosen[a]]);
        const TensorStretch& y = place_of(tensors[chosen[b]]);
        return std::pair(x.file, x.offset) < std::pair(y.file, y.offset);
    });
    std::vector<std::uint64_t> places(chosen.size());
    std::uint64_t end = 0;
    for (const std::size_t i : order) {
        const StoredTensor& tensor = tensors[chosen[i]];
        // Tensors that adjoin in the file adjoin here.
        const std::uint64_t skipped = (place_of(tensor).offset - end) % base::kPageBytes;
        places[i] = tensor.is_aligned() ? end + skipped : base::align_up(end, kMovedAlign);
        end = places[i] + tensor.bytes;
    }
    return places;
}

}  // namespace penstock::weights
