// SPDX-License-Identifier: Apache-2.0
// tools/make_ptx.py makes ptx/copy_rows.ptx of this.
#include "kernels/copy_rows.hpp"

extern "C" __global__ void __launch_bounds__(penstock::kernels::kBlock)
    penstock_copy_rows(std::uint64_t rows, std::uint64_t count) {
    using namespace penstock::kernels;
    const std::uint64_t thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
    copy_rows(InPlace{}, rows, count,
              {thread / kWarp, threads / kWarp, static_cast<unsigned>(thread % kWarp)});
}
