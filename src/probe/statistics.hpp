// SPDX-License-Identifier: Apache-2.0
// Basic statistics for reports.
#pragma once

#include <cstddef>
#include <vector>

namespace penstock::probe {

/// The median of at least one value.
[[nodiscard]] double median(std::vector<double> values);

/// Half the distance from the smallest to the largest, as a share of the median.
[[nodiscard]] double half_range(const std::vector<double>& values);

/// The t for which a Student's t of `degrees` degrees of freedom lies within ±t with probability
/// `confidence`.
[[nodiscard]] double student(double confidence, std::size_t degrees);

/// A mean with its t interval; the interval is infinite for fewer than two values.
struct MeanInterval {
    double mean = 0;
    double low = 0;
    double high = 0;
};
[[nodiscard]] MeanInterval mean_interval(const std::vector<double>& values, double confidence);

/// A mean of ratios with its 95 % interval and the smallest and largest.
struct RatioInterval {
    double mean = 0;
    double low = 0;  ///< low and high are 0 and infinity for fewer than two ratios
    double high = 0;
    double min = 0;
    double max = 0;
};

/// The t interval of the mean logarithm, so that 1/2 and 2 lie equally far from 1.
[[nodiscard]] RatioInterval ratio_interval(const std::vector<double>& ratios);

}  // namespace penstock::probe
