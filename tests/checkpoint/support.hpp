// SPDX-License-Identifier: Apache-2.0
// Checkpoints made by hand, so that what reads them is tested apart from what writes them.
#pragma once

#include "checkpoint/manifest.hpp"
#include "format/support.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/error.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace penstock::checkpoint::test {

/// The Error that `call` throws.
inline Error error_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {ErrorCode::kClosed, 0, "", "", kNoOffset, "nothing was thrown"};
}

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
Manifest write_checkpoint(const std::string& folder, const std::vector<TestTensor>& tensors,
                          const TestCheckpoint& options = {});

std::string read_text(const std::string& path);
void write_text(const std::string& path, std::string_view text);

}  // namespace penstock::checkpoint::test
