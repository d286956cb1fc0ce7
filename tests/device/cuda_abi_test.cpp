// SPDX-License-Identifier: Apache-2.0
// Our declarations of CUDA and cuFile are NVIDIA's. abi/cuda_headers.cpp and abi/cufile_headers.cpp
// are compiled once for each release whose headers are here; this says which they were.
#include "device/abi/cuda_headers.hpp"

#include <gtest/gtest.h>

namespace penstock::device {
namespace {

TEST(CudaAbi, IsThatOfTheHeadersOfCuda12) {
    if (compared_with_cuda_12() == 0) {
        GTEST_SKIP() << "no headers of CUDA 12: pip install -r tools/requirements-test.txt";
    }
    EXPECT_EQ(compared_with_cuda_12() / 1000, 12);
}

TEST(CudaAbi, IsThatOfTheHeadersOfCuda13) {
    if (compared_with_cuda_13() == 0) {
        GTEST_SKIP() << "no headers of CUDA 13: pip install -r tools/requirements-test.txt";
    }
    EXPECT_EQ(compared_with_cuda_13() / 1000, 13);
}

TEST(CuFileAbi, IsThatOfTheHeadersOfCuda12) {
    if (cufile_compared_with_cuda_12() == 0) {
        GTEST_SKIP() << "no cufile.h of CUDA 12: pip install -r tools/requirements-test.txt";
    }
    EXPECT_EQ(cufile_compared_with_cuda_12() / 1000, 12);
}

TEST(CuFileAbi, IsThatOfTheHeadersOfCuda13) {
    if (cufile_compared_with_cuda_13() == 0) {
        GTEST_SKIP() << "no cufile.h of CUDA 13: pip install -r tools/requirements-test.txt";
    }
    EXPECT_EQ(cufile_compared_with_cuda_13() / 1000, 13);
}

}  // namespace
}  // namespace penstock::device
