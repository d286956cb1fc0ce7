// SPDX-License-Identifier: Apache-2.0
// The options of one transfer.
#pragma once

#include <penstock/error.hpp>
#include <penstock/gpu.hpp>
#include <penstock/types.hpp>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace penstock {

namespace engine {
class DepthLimit;
}  // namespace engine

/// A limit on requests at one device that several transfers share, below the engine's
/// `queue_depth`: pass copies of it in the options of each. A device with several channels divides
/// it equally, with at least one request for each. Thread-safe; may outlive engines.
class PENSTOCK_API DepthLimit {
public:
    DepthLimit() = default;  ///< no limit
    /// `requests`: 1 or more, else kInvalidArgument.
    explicit DepthLimit(std::uint32_t requests);
    /// 0: no limit.
    [[nodiscard]] std::uint32_t requests() const noexcept;

    /// For the engine.
    explicit DepthLimit(std::shared_ptr<engine::DepthLimit> limit) : limit_(std::move(limit)) {}
    [[nodiscard]] const std::shared_ptr<engine::DepthLimit>& handle() const noexcept {
        return limit_;
    }

private:
    std::shared_ptr<engine::DepthLimit> limit_;
};

/// Options of one transfer.
struct TransferOptions {
    Priority priority = Priority::kNormal;
    /// Reads: the end of the file is not an error; `extent_bytes()` has the bytes that were read.
    bool allow_short = false;
    /// Writes: durable (data, size, name) when done.
    bool sync = false;
    /// Writes: extents of the list may overlap; which of them is written last is undefined. Without
    /// it such a list is an error (kInvalidArgument).
    bool allow_overlap = false;
    /// Limit on the bytes of a request, rounded up to the blocks of the device. 0, or more than the
    /// engine's limit, means the engine's. Not used for transfers on the caller's own thread
    /// (`inline_bytes_max`).
    std::uint32_t block_bytes = 0;
    DepthLimit depth_limit = {};
    /// For paths: as in FileOptions. For an open File: kAuto means the policy it was opened with.
    /// kCached reads all bytes through the page cache, and kDirect none; with both, small blocking
    /// writes do not go through it. kRequired fails with kUnsupported if the File is not direct.
    CachePolicy cache = CachePolicy::kAuto;
    /// Transfers with the same address are one flow (see Priority), and so run in their order. The
    /// address is only compared. Without one, each File is a flow.
    const void* group = nullptr;
    /// For memory of a GPU: the transfer begins after the work that these streams hold at the call.
    /// Empty: the legacy default stream of each GPU in the transfer. Used only during the call.
    std::vector<StreamHandle> streams = {};
};

}  // namespace penstock
