// SPDX-License-Identifier: Apache-2.0
#include "os/machine/control_groups.hpp"

#include <penstock/memory.hpp>

namespace penstock {

std::uint64_t usable_memory_bytes(const std::string& root) {
    return os::usable_memory(root);
}

std::uint64_t available_memory_bytes(const std::string& root) {
    return os::available_memory(root);
}

std::optional<std::chrono::microseconds> memory_stall(const std::string& root) {
    return os::memory_stall(root);
}

unsigned usable_processors(const std::string& root) {
    return os::usable_processors(root);
}

}  // namespace penstock
