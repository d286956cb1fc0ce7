// SPDX-License-Identifier: Apache-2.0
// Words for code that a GPU and the host both compile: by nvcc into kernels, by the host's compiler
// into what tests run. Files of this room include the standard library and each other, nothing
// else.
#pragma once

#ifdef __CUDACC__
#define PENSTOCK_KERNEL __host__ __device__
#else
#define PENSTOCK_KERNEL
#endif
