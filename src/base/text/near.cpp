// SPDX-License-Identifier: Apache-2.0
#include "base/text/near.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace penstock::base {

namespace {

constexpr std::size_t kWordMax = 256;  // the work grows with the square of it

// Damerau and Levenshtein's distance; three rows of the table are alive at a time.
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1);
    std::vector<std::size_t> last(b.size() + 1);
    std::vector<std::size_t> now(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) {
        last[j] = j;
    }
    for (std::size_t i = 1; i <= a.size(); ++i) {
        now[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            now[j] = std::min(
                {last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                now[j] = std::min(now[j], before[j - 2] + 1);
            }
        }
        std::swap(before, last);
        std::swap(last, now);
    }
    return last[b.size()];
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
    if (word.size() > kWordMax) {
        return {};
    }
    std::size_t least = word.size() / 3 + 1;
    std::string_view found;
    for (const std::string_view candidate : candidates) {
        const std::size_t longer = std::max(word.size(), candidate.size());
        if (longer - std::min(word.size(), candidate.size()) >= least) {
            continue;
        }
        if (const std::size_t its = distance(word, candidate); its < least) {
            least = its;
            found = candidate;
        }
    }
    return found;
}

}  // namespace penstock::base
