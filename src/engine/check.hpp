// SPDX-License-Identifier: Apache-2.0
// What a caller asks for, and whether it can mean anything. Wrong arguments are found here, at the
// call, before anything is done.
#pragma once

#include "base/result.hpp"
#include "engine/extents.hpp"
#include "engine/request.hpp"
#include "os/file.hpp"

#include <penstock/types.hpp>

#include <memory>
#include <string>
#include <vector>

namespace penstock::engine {

/// The request of a caller, before it is checked.
struct TransferSpec {
    Op op = Op::kRead;
    FileList files;
    std::vector<std::string> paths;  ///< instead of files: opened for this transfer, then closed
    Extents extents;
    TransferOptions options;
    bool caller_waits = false;  ///< a blocking call: the caller's thread may be used
    std::shared_ptr<const void> keep;
};

/// A request after its checks, with what they found.
struct CheckedTransfer {
    std::uint64_t total_bytes = 0;  ///< of all extents
    bool device_memory = false;     ///< some extent has memory of a device
};

/// kInvalidArgument that names the argument, what came, and what is allowed.
[[nodiscard]] base::Result<CheckedTransfer> check_transfer(const TransferSpec& spec);

}  // namespace penstock::engine
