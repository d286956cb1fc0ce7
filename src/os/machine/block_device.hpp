// SPDX-License-Identifier: Apache-2.0
// The attributes of the device under a file, from sysfs: for describe(), doctor and bench.
#pragma once

#include "os/file.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace penstock::os {

struct BlockDevice {
    std::string name;   ///< "nvme0n1", "vda", "loop3": the whole disk, not the partition
    std::string model;  ///< or empty
    bool rotational = false;
    std::string scheduler;  ///< the active one: "none", "mq-deadline", ...
    std::uint32_t logical_block_bytes = 512;
    std::uint32_t physical_block_bytes = 512;
    std::uint32_t max_request_kib = 0;  ///< queue/max_sectors_kb
    std::uint32_t queue_requests = 0;   ///< queue/nr_requests
    int numa_node = -1;
};

/// Empty if there is no block device (tmpfs, NFS, overlay).
[[nodiscard]] std::optional<BlockDevice> block_device(DeviceId id);

}  // namespace penstock::os
