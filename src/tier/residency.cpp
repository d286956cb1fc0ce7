// SPDX-License-Identifier: Apache-2.0
#include "tier/residency.hpp"

#include "base/align.hpp"
#include "tier/slot_layout.hpp"

#include <algorithm>
#include <numeric>

namespace penstock::tier {

namespace {

constexpr std::uint64_t kGpuBytesMin = 512;
constexpr std::uint64_t kLevels = 512;  // tried between nothing and the largest unit

class Search {
public:
    Search(std::span<const std::uint64_t> bytes, const UnitTensors& units, std::uint32_t slots,
           MemoryKind kind)
        : bytes_(bytes), units_(units), slots_(slots), kind_(kind) {
        for (std::vector<std::size_t>& unit : units_) {
            std::sort(unit.begin(), unit.end());
            unit.erase(std::unique(unit.begin(), unit.end()), unit.end());
            std::stable_sort(unit.begin(), unit.end(),
                             [this](auto a, auto b) { return bytes_[a] > bytes_[b]; });
        }
    }

    // Reads, of each unit, the largest tensors that fit below the level; the others stay.
    [[nodiscard]] Residency at(std::uint64_t level) const {
        Residency out;
        out.stays.assign(bytes_.size(), false);
        for (const std::vector<std::size_t>& unit : units_) {
            std::uint64_t read = 0;
            for (const std::size_t tensor : unit) {
                if (read + memory_in_slot(bytes_[tensor]) <= level) {
                    read += memory_in_slot(bytes_[tensor]);
                } else {
                    out.stays[tensor] = true;
                }
            }
        }
        count(out);
        return out;
    }

    // Tensors that fit into what is left over stay too: large ones first, spread over the depth.
    void fill(Residency& out, std::uint64_t memory_bytes) const {
        std::vector<std::size_t> units(units_.size());
        std::iota(units.begin(), units.end(), std::size_t{0});
        // Multiples of the golden section, modulo 1, are spread evenly however many there are.
        std::stable_sort(units.begin(), units.end(), [](std::size_t a, std::size_t b) {
            constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
            return a * kGolden < b * kGolden;
        });
        std::vector<std::size_t> order;  // the first tensor of each unit, then the second
        for (std::size_t rank = 0, before = ~std::size_t{0}; before != order.size(); ++rank) {
            before = order.size();
            for (const std::size_t unit : units) {
                if (rank < units_[unit].size()) {
                    order.push_back(units_[unit][rank]);
                }
            }
        }
        std::stable_sort(order.begin(), order.end(),
                         [this](auto a, auto b) { return bytes_[a] > bytes_[b]; });
        for (bool again = true; again;) {
            again = false;
            std::uint64_t used = out.used_bytes();
            for (const std::size_t tensor : order) {
                const std::uint64_t memory = memory_of_resident(bytes_[tensor], kind_);
                if (!out.stays[tensor] && used + memory <= memory_bytes) {
                    out.stays[tensor] = true;
                    used += memory;
                    again = true;
                }
            }
            count(out);  // the slots may have become smaller
        }
    }

    [[nodiscard]] std::uint64_t largest_unit() const {
        std::uint64_t most = 0;
        for (const std::vector<std::size_t>& unit : units_) {
            std::uint64_t all = 0;
            for (const std::size_t tensor : unit) {
                all += memory_in_slot(bytes_[tensor]);
            }
            most = std::max(most, all);
        }
        return most;
    }

private:
    void count(Residency& out) const {
        out.resident_bytes = out.slot_bytes = out.read_bytes = 0;
        std::uint32_t with_reads = 0;
        for (const std::vector<std::size_t>& unit : units_) {
            std::uint64_t slot = 0;
            for (const std::size_t tensor : unit) {
                if (!out.stays[tensor]) {
                    slot += memory_in_slot(bytes_[tensor]);
                    out.read_bytes += bytes_[tensor];
                }
            }
            out.slot_bytes = std::max(out.slot_bytes, memory_of_block(slot, kind_));
            with_reads += slot != 0 ? 1 : 0;
        }
        for (std::size_t tensor = 0; tensor < bytes_.size(); ++tensor) {
            out.resident_bytes += out.stays[tensor] ? memory_of_resident(bytes_[tensor], kind_) : 0;
        }
        out.slots = std::min(slots_, with_reads);
    }

    std::span<const std::uint64_t> bytes_;
    UnitTensors units_;  // each from its largest tensor to its smallest
    std::uint32_t slots_;
    MemoryKind kind_;
};

}  // namespace

std::uint64_t memory_in_slot(std::uint64_t tensor_bytes) {
    return tensor_bytes == 0 ? 0
                             : base::align_up(tensor_bytes, base::kPageBytes) + base::kPageBytes;
}

std::uint64_t memory_of_resident(std::uint64_t tensor_bytes, MemoryKind kind) {
    if (kind == MemoryKind::kHost || tensor_bytes == 0) {
        return memory_in_slot(tensor_bytes);
    }
    return memory_of_block(tensor_bytes + kLineBytes, kind);
}

std::uint64_t memory_of_block(std::uint64_t bytes, MemoryKind kind) {
    if (kind == MemoryKind::kHost) {
        return bytes;
    }
    return base::align_up(bytes, bytes > base::kMiB ? 2 * base::kMiB : kGpuBytesMin);
}

Residency choose_residency(std::span<const std::uint64_t> bytes, const UnitTensors& units,
                           std::uint64_t memory_bytes, std::uint32_t slots, MemoryKind kind) {
    const Search search(bytes, units, slots, kind);
    const std::uint64_t largest = search.largest_unit();
    Residency best = search.at(0);  // everything stays
    for (std::uint64_t step = 1; best.used_bytes() > memory_bytes && step <= kLevels; ++step) {
        const Residency here = search.at(largest / kLevels * step + largest % kLevels);
        if (here.used_bytes() <= memory_bytes || here.used_bytes() < best.used_bytes()) {
            best = here;
        }
    }
    if (best.used_bytes() <= memory_bytes) {
        search.fill(best, memory_bytes);
    }
    return best;
}

}  // namespace penstock::tier
