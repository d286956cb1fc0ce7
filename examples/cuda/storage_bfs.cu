// SPDX-License-Identifier: Apache-2.0
// A level of a breadth-first search over lists of edges on storage, a kernel: blocks of a multiple
// of 32 threads. The host does what ../storage_bfs.cpp does, with RowServerOptions::gpu and
// RowServer::gpu_array(), and launches this for each level. CPU-served. Compiled, not yet run.
//
//     tools/make_ptx.py --check examples/cuda/storage_bfs.cu
//
// needs: ld.acquire.sys st.release.sys
#include "storage_bfs.hpp"

/// `status`: 1 (kReady) before the launch, and after it if all rows came.
extern "C" __global__ void storage_bfs_level(penstock::device::Array<std::uint32_t> edges,
                                             storage_bfs::Level level, unsigned int* status) {
    const std::uint64_t thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const std::uint64_t warps = std::uint64_t{gridDim.x} * blockDim.x / 32;
    const auto found = storage_bfs::visit(edges, level, thread / 32, warps,
                                          static_cast<std::uint32_t>(thread % 32), 32);
    if (thread % 32 == 0) {
        atomicMax(status, static_cast<unsigned int>(found));
    }
}
