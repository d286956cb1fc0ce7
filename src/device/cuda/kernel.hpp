// SPDX-License-Identifier: Apache-2.0
// Kernels: loaded from the PTX that is kept in src/kernels, once a GPU.
#pragma once

#include "base/result.hpp"
#include "device/cuda/driver.hpp"

#include <cstdint>

namespace penstock::device {

/// A kernel in the primary context of a GPU; the first call loads `file` of src/kernels/ptx. The
/// driver makes machine code of it then, which it keeps on disk. Lives until the process ends.
/// kUnsupported for a GPU before Turing (compute capability 7.5). Thread-safe.
[[nodiscard]] base::Result<cuda::CUfunction> kernel(const Driver& driver, std::int32_t device,
                                                    const char* file, const char* name);

}  // namespace penstock::device
