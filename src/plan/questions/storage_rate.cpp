// SPDX-License-Identifier: Apache-2.0
#include "plan/questions/storage_rate.hpp"

#include "plan/amount.hpp"
#include "plan/derive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace penstock::plan {

namespace {

bool has_figure(const Answer& out, const std::string& name) {
    return std::any_of(out.figures.begin(), out.figures.end(),
                       [&](const Figure& one) { return one.name == name; });
}

std::string name_of_rate(std::string_view rate, const char* suffix) {
    return fmt::format("{}_bytes_per_second{}", rate, suffix);
}

}  // namespace

std::optional<MeasuredRate> rate_of(std::string_view verb, std::string_view name,
                                    const std::optional<double>& mean,
                                    const std::optional<double>& low,
                                    const std::optional<double>& high) {
    if (!mean) {
        if (low || high) {
            refuse(verb, fmt::format("{0}_low and {0}_high need {0}", name));
        }
        return std::nullopt;
    }
    const MeasuredRate rate{*mean, low.value_or(*mean), high.value_or(*mean)};
    if (rate.low > rate.mean || rate.mean > rate.high) {
        refuse(verb, fmt::format("{}: got {} in {} to {}; expected low <= rate <= high", name,
                                 rate.mean, rate.low, rate.high));
    }
    return rate;
}

void add_rate_figures(Answer& out, std::string_view name, std::string_view label,
                      const MeasuredRate& rate) {
    for (const RateEnd& end : kRateEnds) {
        if (end.suffix[0] == '\0' || !is_exact(rate)) {
            add_figure(out, {name_of_rate(name, end.suffix),
                             fmt::format("{}{}", label, end.label),
                             rate.*end.value,
                             "B/s",
                             is_exact(rate) ? "[given]" : "[given, with its 95 % interval]",
                             {}});
        }
    }
}

void add_multiples(Answer& out, std::string_view name, const char* label, std::string_view rate,
                   std::string_view one) {
    const Input each = input_of(out, one);
    for (const RateEnd& end : kRateEnds) {
        if (!has_figure(out, name_of_rate(rate, end.suffix))) {
            continue;
        }
        const Input from = input_of(out, name_of_rate(rate, end.suffix));
        add_figure(out, {fmt::format("{}{}", name, end.suffix),
                         fmt::format("{}{}", label, end.label),
                         from.value / each.value,
                         "",
                         fmt::format("{} / {}", from.name, each.name),
                         {from, each}});
    }
}

void add_durations(Answer& out, std::string_view name, const char* label, std::string_view bytes,
                   std::string_view rate) {
    const Input all = input_of(out, bytes);
    for (const RateEnd& end : kRateEnds) {
        if (!has_figure(out, name_of_rate(rate, end.opposite))) {
            continue;
        }
        const Input from = input_of(out, name_of_rate(rate, end.opposite));
        add_figure(out, {fmt::format("{}{}", name, end.suffix),
                         fmt::format("{}{}", label, end.label),
                         all.value / from.value,
                         "s",
                         fmt::format("{} / {}", all.name, from.name),
                         {all, from}});
    }
}

std::string rate_text(const MeasuredRate& rate) {
    const auto decimal = [](double value) { return in_two_bases(value, "B/s").decimal; };
    return is_exact(rate) ? decimal(rate.mean)
                          : fmt::format("{} ({} to {}, 95 % interval)", decimal(rate.mean),
                                        decimal(rate.low), decimal(rate.high));
}

std::string accelerators_text(const MeasuredRate& rate, double one) {
    const double count = std::floor(rate.mean / one);
    const std::string share =
        is_exact(rate) ? shown(rate.mean / one, "")
                       : fmt::format("{} to {}, 95 % interval", shown(rate.low / one, ""),
                                     shown(rate.high / one, ""));
    if (count < 1) {
        return fmt::format("not one accelerator ({})", share);
    }
    return fmt::format("{} accelerator{} ({})", number_text(count), count == 1 ? "" : "s", share);
}

std::string verdict_of(const MeasuredRate& rate, double needed, std::string_view storage) {
    if (rate.low >= needed) {
        return "it is enough";
    }
    return rate.high >= needed ? "whether it is enough cannot be said"
                               : fmt::format("it is not enough: {} bind", storage);
}

}  // namespace penstock::plan
