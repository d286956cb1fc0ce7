// SPDX-License-Identifier: Apache-2.0
#include "plan/answer/picture.hpp"

#include "plan/amount.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::size_t kLines = 10;
constexpr std::size_t kEighths = 8;
constexpr std::size_t kScaleColumns = 14;  // of the numbers on the left
constexpr std::array<std::string_view, kEighths + 1> kBlocks{" ", "▁", "▂", "▃", "▄",
                                                             "▅", "▆", "▇", "█"};

// The largest value of each column of the picture: what is short must not go unseen.
std::vector<double> peaks_of(const Series& series, std::size_t columns) {
    std::vector<double> out(columns, 0);
    const double first = series.x.front();
    const double span = series.x.back() - first;
    std::vector<bool> has(columns, false);
    for (std::size_t i = 0; i < series.x.size(); ++i) {
        const double share = span > 0 ? (series.x[i] - first) / span : 0;
        const auto at =
            std::min(columns - 1, static_cast<std::size_t>(share * static_cast<double>(columns)));
        out[at] = has[at] ? std::max(out[at], series.y[i]) : series.y[i];
        has[at] = true;
    }
    for (std::size_t at = 1; at < columns; ++at) {
        if (!has[at]) {
            out[at] = out[at - 1];
        }
    }
    return out;
}

}  // namespace

std::string picture_of(const Series& series, std::size_t columns) {
    std::string out = fmt::format("  {}: {}, {}\n\n", series.label, series.y_label, series.x_label);
    if (series.x.empty()) {
        return out + "  (no points)\n";
    }
    const std::size_t width = std::max<std::size_t>(columns, 40) - kScaleColumns - 4;
    const std::size_t count = std::min(width, std::max<std::size_t>(series.x.size(), 30));
    const std::vector<double> peaks = peaks_of(series, count);
    const double most = *std::max_element(series.y.begin(), series.y.end());
    for (std::size_t line = kLines; line-- > 0;) {
        std::string scale;
        if (line + 1 == kLines) {
            scale = in_two_bases(most, series.y_unit).decimal;
        } else if (line == 0) {
            scale = in_two_bases(0, series.y_unit).decimal;
        }
        std::string bars;
        for (const double peak : peaks) {
            const double height =
                most > 0 ? peak / most * static_cast<double>(kLines * kEighths) : 0;
            const double inside = std::round(height) - static_cast<double>(line * kEighths);
            bars += kBlocks[static_cast<std::size_t>(
                std::clamp(inside, 0.0, static_cast<double>(kEighths)))];
        }
        while (bars.ends_with(' ')) {
            bars.pop_back();
        }
        out += fmt::format("  {:>{}} |{}\n", scale, kScaleColumns - 2, bars);
    }
    const std::string left = in_two_bases(series.x.front(), series.x_unit).decimal;
    const std::string right = in_two_bases(series.x.back(), series.x_unit).decimal;
    out += fmt::format("  {:>{}} +{:-<{}}\n", "", kScaleColumns - 2, "", count);
    const std::size_t between =
        count > left.size() + right.size() ? count - left.size() - right.size() : 1;
    out += fmt::format("  {:>{}}  {}{:>{}}{}\n", "", kScaleColumns - 2, left, "", between, right);
    return out;
}

}  // namespace penstock::plan
