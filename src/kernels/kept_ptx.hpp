// SPDX-License-Identifier: Apache-2.0
// The PTX of the kernels, as it is kept in the repository: no build needs nvcc.
#pragma once

#include <string_view>

namespace penstock::kernels {

/// The PTX of ptx/`name`.ptx, ended by a zero; nullptr where no such file is kept.
[[nodiscard]] const char* kept_ptx(std::string_view name) noexcept;

}  // namespace penstock::kernels
