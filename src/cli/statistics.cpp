// SPDX-License-Identifier: Apache-2.0
#include "cli/statistics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace penstock::cli {

namespace {

// Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; 1.96 is the limit.
constexpr std::array<double, 30> kStudent{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                          2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                          2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                          2.060,  2.056, 2.052, 2.048, 2.045, 2.042};

double student(std::size_t degrees) {
    return degrees <= kStudent.size() ? kStudent[degrees - 1] : 1.96;
}

}  // namespace

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double half_range(const std::vector<double>& values) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const double middle = median(values);
    return middle > 0 ? (*high - *low) / 2 / middle : 0;
}

RatioInterval ratio_interval(const std::vector<double>& ratios) {
    double sum = 0;
    for (const double ratio : ratios) {
        sum += std::log(ratio);
    }
    const auto count = static_cast<double>(ratios.size());
    const double mean = sum / count;
    const auto [min, max] = std::minmax_element(ratios.begin(), ratios.end());
    RatioInterval interval{std::exp(mean), 0, std::numeric_limits<double>::infinity(), *min, *max};
    if (ratios.size() > 1) {
        double squares = 0;
        for (const double ratio : ratios) {
            squares += (std::log(ratio) - mean) * (std::log(ratio) - mean);
        }
        const double deviation = std::sqrt(squares / (count - 1));
        const double half = student(ratios.size() - 1) * deviation / std::sqrt(count);
        interval.low = std::exp(mean - half);
        interval.high = std::exp(mean + half);
    }
    return interval;
}

}  // namespace penstock::cli
