// SPDX-License-Identifier: Apache-2.0
// What the control groups of this process allow it, its own and those above it, of version 1 and 2.
// /proc/self/cgroup says which they are, /proc/self/mountinfo where their files are: neither the
// usual mount points are trusted, nor that the process has a namespace in which its group is "/".
//
// `root` stands for "/" in all of it: tests give a folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::os {

/// The folders of the group of this process and of those above it, nearest first, as far as they
/// can be seen. controller: "memory", "cpu", ... of version 1; "" is version 2.
[[nodiscard]] std::vector<std::string> control_groups(const std::string& controller,
                                                      const std::string& root = {});

/// Bytes that this process may use: the machine's memory, or the least limit of its groups.
[[nodiscard]] std::uint64_t usable_memory(const std::string& root = {});

/// Bytes of them that can be taken now without swapping, or being killed for it: what the machine
/// has free or in its page cache, or what the groups have left.
[[nodiscard]] std::uint64_t available_memory(const std::string& root = {});

/// Processors that this process may use: those it may run on, or as many as the time that its
/// groups give it is worth (a quota of 250 ms each 100 ms: 3).
[[nodiscard]] unsigned usable_processors(const std::string& root = {});

/// What is left to a control group, of the texts of its files: its limit, what it has taken, and
/// its statistics, which know how much of that is page cache.
[[nodiscard]] std::uint64_t memory_left(const std::string& limit, const std::string& taken,
                                        const std::string& statistics);

}  // namespace penstock::os
