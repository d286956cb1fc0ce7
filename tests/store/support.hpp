// SPDX-License-Identifier: Apache-2.0
// Checkpoints made by hand, so that what reads them is tested apart from what writes them.
#pragma once

#include "format/support.hpp"
#include "store/manifest/manifest.hpp"
#include "support/text_files.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/error.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace penstock::test {

/// A slice of a tensor, and the shard that it goes to.
struct TestTensor {
    StateTensor tensor;
    std::uint32_t shard = 0;
};

struct TestCheckpoint {
    std::uint64_t generation = 1;
    std::uint64_t step = 10;
    bool checksums = true;
    std::string structure = "null";
    std::uint64_t seed = 1;  ///< of the shards' ids
};

/// Writes a checkpoint into `folder`, which is there: shards, index and manifest. The manifest as
/// it is on disk.
store::Manifest write_checkpoint(const std::string& folder, const std::vector<TestTensor>& tensors,
                                 const TestCheckpoint& options = {});

}  // namespace penstock::test
