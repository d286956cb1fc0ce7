// SPDX-License-Identifier: Apache-2.0
#include "weights/experts/expert_layout.hpp"

#include "base/align.hpp"
#include "tier/residency.hpp"
#include "weights/model/table_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>

namespace penstock::weights {

namespace {

StoredExpert lay_out(const TableIndex& index, const std::string& user,
                     const std::vector<TensorPart>& parts) {
    StoredExpert out;
    for (const TensorPart& part : parts) {
        const TensorEntry& entry = index.at(user, part);
        out.parts.push_back(
            {.stretches = part_of(entry.stretches, part.offset, part.bytes),
             .bytes = part.bytes,
             .residue = (stored_tensor(entry).residue + part.offset) % tier::kLineBytes});
    }
    std::vector<std::size_t> all(out.parts.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    out.places = tier::place_in_slot(out.parts, all);
    return out;
}

}  // namespace

ExpertLayout lay_out_experts(const TensorTable& table, std::span<const ExpertLayer> layers,
                             std::optional<std::int32_t> gpu) {
    const TableIndex index(table);
    ExpertLayout out;
    for (const ExpertLayer& layer : layers) {
        std::vector<StoredExpert>& experts = out.layers.emplace_back();
        const std::string user = fmt::format("the experts '{}'", layer.name);
        for (const std::vector<TensorPart>& parts : layer.experts) {
            const StoredExpert& expert = experts.emplace_back(lay_out(index, user, parts));
            for (std::size_t i = 0; i < expert.parts.size(); ++i) {
                out.slot_bytes = std::max(out.slot_bytes, expert.places[i] + expert.parts[i].bytes);
            }
        }
        out.experts += experts.size();
    }
    out.slot_bytes = tier::memory_of_block(base::align_up(out.slot_bytes, base::kPageBytes),
                                           gpu ? MemoryKind::kDevice : MemoryKind::kHost);
    return out;
}

}  // namespace penstock::weights
