// SPDX-License-Identifier: Apache-2.0
#include "store/retention.hpp"

#include <algorithm>

namespace penstock::store {

std::vector<std::size_t> outdated(std::span<const CheckpointInfo> checkpoints, std::uint32_t keep,
                                  std::uint32_t keep_every) {
    std::vector<std::size_t> out;
    if (keep == 0) {
        return out;
    }
    std::uint32_t whole = 0;
    for (std::size_t i = checkpoints.size(); i-- > 0;) {
        const CheckpointInfo& info = checkpoints[i];
        const bool kept =
            whole < keep || info.pinned || (keep_every != 0 && info.generation % keep_every == 0);
        if (!kept) {
            out.push_back(i);
        }
        whole += info.problem.empty() ? 1 : 0;
    }
    std::reverse(out.begin(), out.end());
    return out;
}

}  // namespace penstock::store
