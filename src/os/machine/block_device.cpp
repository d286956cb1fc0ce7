// SPDX-License-Identifier: Apache-2.0
#include "os/machine/block_device.hpp"

#include "os/machine/limits.hpp"
#include "os/machine/sysfs.hpp"

#include <unistd.h>

#include <array>
#include <climits>

namespace penstock::os {

namespace {

std::uint32_t number_or(const std::string& path, std::uint32_t otherwise) {
    const auto value = read_number(path);
    return value && *value >= 0 && *value <= UINT32_MAX ? static_cast<std::uint32_t>(*value)
                                                        : otherwise;
}

}  // namespace

std::optional<BlockDevice> block_device(DeviceId id) {
    const std::string folder = sysfs_folder(whole_disk(id));
    std::array<char, PATH_MAX> target{};
    const ssize_t length = ::readlink(folder.c_str(), target.data(), target.size());
    if (length <= 0) {
        return std::nullopt;
    }
    const std::string path(target.data(), static_cast<std::size_t>(length));
    BlockDevice device;
    device.name = path.substr(path.find_last_of('/') + 1);
    device.model = read_text(folder + "/device/model").value_or("");
    const std::string queue = folder + "/queue/";
    device.rotational = number_or(queue + "rotational", 0) != 0;
    device.scheduler = chosen_word(read_text(queue + "scheduler").value_or(""));
    device.logical_block_bytes = number_or(queue + "logical_block_size", 512);
    device.physical_block_bytes = number_or(queue + "physical_block_size", 512);
    device.max_request_kib = number_or(queue + "max_sectors_kb", 0);
    device.queue_requests = number_or(queue + "nr_requests", 0);
    // NVMe namespaces have the node at the controller's PCI function, two levels up.
    for (const char* file :
         {"/device/numa_node", "/device/device/numa_node", "/device/../numa_node"}) {
        if (const auto node = read_number(folder + file)) {
            device.numa_node = static_cast<int>(*node);
            break;
        }
    }
    return device;
}

}  // namespace penstock::os
