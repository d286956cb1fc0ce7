// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "base/text/near.hpp"
#include "format/fault.hpp"

#include <penstock/features.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace penstock {

namespace {

constexpr std::array<std::string_view, 4> kRowPolicies{"static", "clock", "s3fifo", "window"};

}  // namespace

std::string_view name_of(RowPolicy policy) noexcept {
    return kRowPolicies.at(static_cast<std::size_t>(policy));
}

RowPolicy row_policy(std::string_view name) {
    const auto found = std::find(kRowPolicies.begin(), kRowPolicies.end(), name);
    if (found == kRowPolicies.end()) {
        const std::string_view near = base::nearest(name, kRowPolicies);
        base::raise(base::error(
            ErrorCode::kInvalidArgument, "policy",
            near.empty() ? fmt::format("got {}; expected one of {}", format::shown(name),
                                       fmt::join(kRowPolicies, ", "))
                         : fmt::format("got {}; did you mean '{}'?", format::shown(name), near)));
    }
    return static_cast<RowPolicy>(found - kRowPolicies.begin());
}

}  // namespace penstock
