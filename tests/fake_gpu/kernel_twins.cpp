// SPDX-License-Identifier: Apache-2.0
// The kernels of src/kernels as the fake runs them: all threads of a launch, one after the other.
#include "kernels.hpp"
#include "kernels/copy_rows.hpp"

namespace penstock::device::cuda::fake {
namespace {

void copy_rows(const Launch& launch, const Reach& reach) {
    const std::uint64_t threads = std::uint64_t{launch.grid[0]} * launch.block[0];
    const auto rows = launch.parameter<std::uint64_t>(0);
    const auto count = launch.parameter<std::uint64_t>(1);
    for (std::uint64_t thread = 0; thread < threads; ++thread) {
        kernels::copy_rows(reach, rows, count,
                           {thread / kernels::kWarp, threads / kernels::kWarp,
                            static_cast<unsigned>(thread % kernels::kWarp)});
    }
}

struct Row {
    const char* name;
    Twin twin;
};

constexpr Row kTwins[] = {
    {"penstock_copy_rows", copy_rows},
};

}  // namespace

Twin twin_of(const std::string& name) {
    for (const Row& row : kTwins) {
        if (name == row.name) {
            return row.twin;
        }
    }
    return nullptr;
}

}  // namespace penstock::device::cuda::fake
