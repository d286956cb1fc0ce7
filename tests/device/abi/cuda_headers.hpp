// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace penstock::device {

/// CUDA_VERSION of the headers that cuda_abi.hpp was compared with (12090 for 12.9); 0 where the
/// build found none.
[[nodiscard]] int compared_with_cuda_12();
[[nodiscard]] int compared_with_cuda_13();
/// The same for cufile_abi.hpp and the cufile.h next to those headers.
[[nodiscard]] int cufile_compared_with_cuda_12();
[[nodiscard]] int cufile_compared_with_cuda_13();

}  // namespace penstock::device
