// SPDX-License-Identifier: Apache-2.0
// Limits that the control groups of this process set, its own and those above it, of version 1 and
// 2. /proc/self/cgroup lists them, /proc/self/mountinfo locates their files: neither the usual
// mount points are trusted, nor that the process has a namespace in which its group is "/".
//
// `root` replaces "/" everywhere: tests give a folder.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::os {

/// The folders of the group of this process and of those above it, nearest first, as far as they
/// can be seen. controller: "memory", "cpu", ... of version 1; "" is version 2.
[[nodiscard]] std::vector<std::string> control_groups(const std::string& controller,
                                                      const std::string& root = {});

/// Bytes that this process may use: the machine's memory, or the least limit of its groups.
[[nodiscard]] std::uint64_t usable_memory(const std::string& root = {});

/// Bytes of them that can be used now without swapping or being killed: the machine's free memory
/// and page cache, or the rest of the groups' limits.
[[nodiscard]] std::uint64_t available_memory(const std::string& root = {});

/// Time that threads of the nearest group that counts it have waited for memory, or those of the
/// machine; nothing where the kernel counts none (pressure stall information, "some").
[[nodiscard]] std::optional<std::chrono::microseconds> memory_stall(const std::string& root = {});

/// Processors that this process may use: those in its affinity, or the equivalent of its groups'
/// quota of time (a quota of 250 ms each 100 ms: 3).
[[nodiscard]] unsigned usable_processors(const std::string& root = {});

/// Memory left to a control group, from the texts of its files: its limit, its usage, and its
/// statistics, which show how much of the usage is page cache.
[[nodiscard]] std::uint64_t memory_left(const std::string& limit, const std::string& taken,
                                        const std::string& statistics);

}  // namespace penstock::os
