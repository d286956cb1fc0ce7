// SPDX-License-Identifier: Apache-2.0
// What a caller asks for, and whether it can mean anything. Wrong arguments are found here, at the
// call, before anything is done.
#pragma once

#include "base/result.hpp"
#include "engine/extents.hpp"
#include "engine/request.hpp"
#include "os/file.hpp"

#include <penstock/transfer_options.hpp>
#include <penstock/types.hpp>

#include <memory>
#include <string>
#include <vector>

namespace penstock::engine {

/// The request of a caller, before it is checked.
struct TransferSpec {
    Op op = Op::kRead;
    std::vector<std::shared_ptr<os::File>> files;
    std::vector<std::string> paths;  ///< instead of files: opened for this transfer, then closed
    Extents extents;
    TransferOptions options;
    bool caller_waits = false;  ///< a blocking call: the caller's thread may be used
};

/// The bytes of all extents, or kInvalidArgument that names the argument, what came, and what is
/// allowed.
[[nodiscard]] base::Result<std::uint64_t> check_transfer(const TransferSpec& spec);

}  // namespace penstock::engine
