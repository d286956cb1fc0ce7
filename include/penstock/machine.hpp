// SPDX-License-Identifier: Apache-2.0
// The share of the machine that this process may use. Budgets of memory and numbers of threads
// follow from it: in a container or a job of a cluster that is less than the whole machine.
#pragma once

#include <penstock/error.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

/// Limits that the control groups of this process (its own and those above it, of version 1 and 2)
/// set. Each call reads them again; a missing file of the kernel limits nothing. `root` replaces
/// "/" in the names of these files (/proc/self/cgroup, /proc/self/mountinfo, /proc/meminfo and the
/// files that they name): another folder is for tests. Thread-safe; throw nothing but
/// std::bad_alloc.

/// Bytes of memory that this process may use: the machine's, or the least limit of its groups.
[[nodiscard]] PENSTOCK_API std::uint64_t usable_memory_bytes(const std::string& root = {});

/// Bytes of them that can be used at this moment without swapping or being killed.
[[nodiscard]] PENSTOCK_API std::uint64_t available_memory_bytes(const std::string& root = {});

/// Time that threads of this process's group (where no group counts it, of the machine) have waited
/// for memory since it began: the kernel's pressure stall information. Nothing where it has none.
[[nodiscard]] PENSTOCK_API std::optional<std::chrono::microseconds> memory_stall(
    const std::string& root = {});

/// Processors that this process may use, 1 or more: those in its affinity, or the equivalent of its
/// groups' share of time, rounded up.
[[nodiscard]] PENSTOCK_API unsigned usable_processors(const std::string& root = {});

}  // namespace penstock
