// SPDX-License-Identifier: Apache-2.0
// The rate that a storage has, given or measured, within an answer: as figures, and as a sentence
// that says whether it is enough.
#pragma once

#include <penstock/plan.hpp>
#include <penstock/plan_model.hpp>

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::plan {

/// The mean of a rate and the ends of its interval: a suffix of names, the end of a label, the
/// value, and the end that a time follows from.
struct RateEnd {
    const char* suffix;
    const char* label;
    double MeasuredRate::*value;
    const char* opposite;
};
inline constexpr std::array<RateEnd, 3> kRateEnds{
    {{"", "", &MeasuredRate::mean, ""},
     {"_low", ", at least", &MeasuredRate::low, "_high"},
     {"_high", ", at most", &MeasuredRate::high, "_low"}}};

[[nodiscard]] constexpr bool is_exact(const MeasuredRate& rate) {
    return rate.low == rate.high;
}

/// The rate of three options, `name`, `name`_low and `name`_high. Throws Error for ends without a
/// rate, and for what is not low <= rate <= high.
[[nodiscard]] std::optional<MeasuredRate> rate_of(std::string_view verb, std::string_view name,
                                                  const std::optional<double>& mean,
                                                  const std::optional<double>& low,
                                                  const std::optional<double>& high);

/// Adds the figures `name`_bytes_per_second, and with an interval `name`_bytes_per_second_low and
/// _high.
void add_rate_figures(Answer& out, std::string_view name, std::string_view label,
                      const MeasuredRate& rate);

/// Adds `name` = rate / `one`, and where the rate has an interval `name`_low and _high. `rate`: the
/// name that add_rate_figures() had; `one`: a figure.
void add_multiples(Answer& out, std::string_view name, const char* label, std::string_view rate,
                   std::string_view one);

/// Adds `name` = `bytes` / rate, likewise.
void add_durations(Answer& out, std::string_view name, const char* label, std::string_view bytes,
                   std::string_view rate);

/// "5.2 GB/s (5 GB/s to 5.4 GB/s, 95 % interval)".
[[nodiscard]] std::string rate_text(const MeasuredRate& rate);

/// "3 accelerators (2.9 to 3.2, 95 % interval)".
[[nodiscard]] std::string accelerators_text(const MeasuredRate& rate, double one);

/// "it is enough", "it is not enough: STORAGE binds" or "whether it is enough cannot be said".
[[nodiscard]] std::string verdict_of(const MeasuredRate& rate, double needed,
                                     std::string_view storage);

}  // namespace penstock::plan
