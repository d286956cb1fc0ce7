// SPDX-License-Identifier: Apache-2.0
#include "probe/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace penstock::probe {

namespace {

// P(|T| < t) of Student's t, by its finite series (Abramowitz and Stegun 26.7.3 and 26.7.4).
double student_within(double t, std::size_t degrees) {
    const double angle = std::atan(t / std::sqrt(static_cast<double>(degrees)));
    const double cosine = std::cos(angle);
    const bool odd = degrees % 2 == 1;
    double term = odd ? cosine : 1;
    double sum = degrees == 1 ? 0 : term;
    for (std::size_t k = odd ? 3 : 2; k < degrees; k += 2) {
        term *= cosine * cosine * static_cast<double>(k - 1) / static_cast<double>(k);
        sum += term;
    }
    const double series = std::sin(angle) * sum;
    return odd ? 2 / std::numbers::pi * (angle + series) : series;
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

double student(double confidence, std::size_t degrees) {
    double low = 0;
    double high = 1e5;
    for (int i = 0; i < 48; ++i) {
        const double middle = (low + high) / 2;
        (student_within(middle, degrees) < confidence ? low : high) = middle;
    }
    return high;
}

MeanInterval mean_interval(const std::vector<double>& values, double confidence) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const auto count = static_cast<double>(values.size());
    double sum = 0;
    for (const double value : values) {
        sum += value;
    }
    const double mean = values.empty() ? 0 : sum / count;
    if (values.size() < 2) {
        return {mean, -kInfinity, kInfinity};
    }
    double squares = 0;
    for (const double value : values) {
        squares += (value - mean) * (value - mean);
    }
    const double deviation = std::sqrt(squares / (count - 1));
    const double half = student(confidence, values.size() - 1) * deviation / std::sqrt(count);
    return {mean, mean - half, mean + half};
}

RatioInterval ratio_interval(const std::vector<double>& ratios) {
    std::vector<double> logs;
    logs.reserve(ratios.size());
    for (const double ratio : ratios) {
        logs.push_back(std::log(ratio));
    }
    const MeanInterval interval = mean_interval(logs, 0.95);
    const auto [min, max] = std::minmax_element(ratios.begin(), ratios.end());
    return {std::exp(interval.mean), std::exp(interval.low), std::exp(interval.high), *min, *max};
}

}  // namespace penstock::probe
