// SPDX-License-Identifier: Apache-2.0
// What this process may use of its machine. Budgets of memory and numbers of threads follow from
// it: in a container or a job of a cluster that is less than the machine has.
#pragma once

#include <penstock/error.hpp>

#include <cstdint>
#include <string>

namespace penstock {

/// What the control groups of this process (its own and those above it, of version 1 and 2) leave
/// it. Each call looks again; a file of the kernel that is not there limits nothing. `root` stands
/// for "/" in the names of these files (/proc/self/cgroup, /proc/self/mountinfo, /proc/meminfo and
/// what they name): another folder is for tests. Thread-safe; throw nothing but std::bad_alloc.

/// Bytes of memory that this process may use: the machine's, or the least limit of its groups.
[[nodiscard]] PENSTOCK_API std::uint64_t usable_memory_bytes(const std::string& root = {});

/// Bytes of them that can be taken at this moment without swapping, or being killed for it.
[[nodiscard]] PENSTOCK_API std::uint64_t available_memory_bytes(const std::string& root = {});

/// Processors that this process may use, 1 or more: those it may run on, or as many as the share
/// of time that its groups give it is worth, rounded up.
[[nodiscard]] PENSTOCK_API unsigned usable_processors(const std::string& root = {});

}  // namespace penstock
