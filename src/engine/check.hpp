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

class DepthLimit;

/// What a caller asks for, before it is checked.
struct TransferSpec {
    Op op = Op::kRead;
    std::vector<std::shared_ptr<os::File>> files;
    std::vector<std::string> paths;     ///< instead of files: opened for this transfer, then closed
    DirectIo direct = DirectIo::kAuto;  ///< for paths
    Extents extents;
    bool allow_short = false;
    bool sync = false;
    bool allow_overlap = false;
    Priority priority = Priority::kNormal;
    std::uint32_t block_bytes = 0;            ///< of a request at most; 0: the engine's
    std::shared_ptr<DepthLimit> depth_limit;  ///< shared with other transfers, or none
    const void* group = nullptr;              ///< transfers with the same are one flow
    bool caller_waits = false;                ///< a blocking call: the caller's thread may be used
};

/// kInvalidArgument that names the argument, what came, and what is allowed.
[[nodiscard]] base::Result<void> check_transfer(const TransferSpec& spec);

}  // namespace penstock::engine
