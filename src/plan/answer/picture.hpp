// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <penstock/plan_model.hpp>

#include <cstddef>
#include <string>

namespace penstock::plan {

/// A curve as columns of block characters, ten lines high, with the scale of both axes.
[[nodiscard]] std::string picture_of(const Series& series, std::size_t columns);

}  // namespace penstock::plan
