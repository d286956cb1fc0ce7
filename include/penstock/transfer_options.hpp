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
/// `queue_depth`: give copies of one to the options of each. A device with several channels gives
/// each an equal share of it, at least one request. Thread-safe; may outlive engines.
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
    /// Reads: the end of the file is no error; `extent_bytes()` has the bytes that were read.
    bool allow_short = false;
    /// Writes: durable (data, size, name) when done.
    bool sync = false;
    /// Writes: extents of the list may overlap; which of them is written last is undefined. Without
    /// it such a list is an error (kInvalidArgument).
    bool allow_overlap = false;
    /// Maximum bytes of a request, rounded up to the blocks of the device; 0, or more than the
    /// engine's: the engine's. Transfers on the caller's own thread (`inline_bytes_max`) have no
    /// blocks.
    std::uint32_t block_bytes = 0;
    DepthLimit depth_limit = {};
    /// Of paths, as in FileOptions. Of an open File: kAuto is as it was opened; reads take all of
    /// their bytes through the page cache (kCached) or none (kDirect, as writes do), and kRequired
    /// fails with kUnsupported where the File is not direct.
    CachePolicy cache = CachePolicy::kAuto;
    /// Transfers with the same address are one flow, see Priority, and so run in their order; the
    /// address is only compared. Without one, each File is a flow.
    const void* group = nullptr;
    /// Memory of a GPU: the transfer begins after what these streams hold at the call. Empty: the
    /// legacy default stream of each GPU whose memory it is. Looked at by the call alone.
    std::vector<StreamHandle> streams = {};
};

}  // namespace penstock
