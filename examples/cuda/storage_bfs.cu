// SPDX-License-Identifier: Apache-2.0
// A level of a breadth-first search over lists of edges on storage, a kernel: blocks of a multiple
// of 32 threads. ../storage_bfs_gpu.cpp launches this for each level, out of storage_bfs.ptx,
// which tools/make_ptx.py makes. CPU-served. The host's form of it runs on the fake driver; not yet
// run on a GPU.
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
