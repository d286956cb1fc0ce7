// SPDX-License-Identifier: Apache-2.0
#include "state/shared_memory.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace penstock::state {

namespace {

struct Stretch {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::size_t owner = 0;
};

// The stretches of memory without gaps that a tensor covers.
void add_stretches(const ElementLayout& tensor, std::size_t owner, std::vector<Stretch>& out) {
    const std::size_t first = out.size();
    std::uint64_t bytes = tensor.element_bytes;
    out.push_back({tensor.begin, 0, owner});
    for (const auto& [step, extent] : tensor.dimensions) {
        const std::size_t count = out.size() - first;
        if (step == bytes && count == 1) {
            bytes *= extent;
            continue;
        }
        for (std::uint64_t i = 1; i < extent; ++i) {
            for (std::size_t k = 0; k < count; ++k) {
                out.push_back({out[first + k].begin + i * step, 0, owner});
            }
        }
    }
    for (std::size_t i = first; i < out.size(); ++i) {
        out[i].end = out[i].begin + bytes;
    }
}

// `near`: those whose bytes lie among each other's. Columns of one matrix do, and share nothing.
std::optional<std::pair<std::size_t, std::size_t>> find_among(
    std::span<const ElementLayout> tensors, std::span<const std::size_t> near) {
    const auto is_kin = [&](std::size_t other) {
        return tensors[other].kin == tensors[near[0]].kin;
    };
    if (std::all_of(near.begin(), near.end(), is_kin)) {
        return std::nullopt;
    }
    std::vector<Stretch> stretches;
    for (const std::size_t i : near) {
        add_stretches(tensors[i], i, stretches);
    }
    std::sort(stretches.begin(), stretches.end(),
              [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
    Stretch furthest = stretches[0];
    for (const Stretch& one : stretches) {
        if (one.begin < furthest.end && tensors[one.owner].kin != tensors[furthest.owner].kin) {
            return std::pair(furthest.owner, one.owner);
        }
        furthest = one.end > furthest.end ? one : furthest;
    }
    return std::nullopt;
}

// Calls `more` with each group of tensors whose bytes lie among each other's, until it is false.
template <typename More>
void for_each_group(std::span<const ElementLayout> tensors, const More& more) {
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::tuple(tensors[a].space, tensors[a].begin, a) <
               std::tuple(tensors[b].space, tensors[b].begin, b);
    });
    bool goes_on = true;
    for (std::size_t i = 0; i < order.size() && goes_on;) {
        std::uint64_t reach = tensors[order[i]].end();
        std::size_t next = i + 1;
        for (; next < order.size() && tensors[order[next]].space == tensors[order[i]].space &&
               tensors[order[next]].begin < reach;
             ++next) {
            reach = std::max(reach, tensors[order[next]].end());
        }
        goes_on = more(std::span<const std::size_t>(order).subspan(i, next - i));
        i = next;
    }
}

}  // namespace

std::uint64_t ElementLayout::end() const {
    std::uint64_t out = begin + element_bytes;
    for (const auto& [step, extent] : dimensions) {
        out += (extent - 1) * step;
    }
    return out;
}

bool ElementLayout::meets_itself() const {
    std::uint64_t reach = element_bytes - 1;
    for (const auto& [step, extent] : dimensions) {
        if (step <= reach) {
            return true;
        }
        reach += (extent - 1) * step;
    }
    return false;
}

std::optional<std::pair<std::size_t, std::size_t>> find_shared(
    std::span<const ElementLayout> tensors) {
    std::optional<std::pair<std::size_t, std::size_t>> out;
    for_each_group(tensors, [&](std::span<const std::size_t> near) {
        out = find_among(tensors, near);
        return !out.has_value();
    });
    return out;
}

std::vector<std::size_t> find_sharing(std::span<const ElementLayout> tensors) {
    std::vector<std::size_t> out;
    for_each_group(tensors, [&](std::span<const std::size_t> near) {
        if (find_among(tensors, near)) {
            out.insert(out.end(), near.begin(), near.end());
        }
        return true;
    });
    std::sort(out.begin(), out.end());
    return out;
}

}  // namespace penstock::state
