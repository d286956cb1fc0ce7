// SPDX-License-Identifier: Apache-2.0
// The share of the machine that this process may use. Memory budgets and numbers of threads depend
// on it: in a container or a cluster job it is less than the whole machine.
#pragma once

#include <penstock/error.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

/// These functions read the limits of the control groups of this process (its own and those above
/// it, of version 1 and 2) again at each call. A missing file of the kernel means no limit. `root`
/// replaces "/" in the names of these files (/proc/self/cgroup, /proc/self/mountinfo, /proc/meminfo
/// and the files that they name), for tests. Thread-safe; they throw only std::bad_alloc.

/// Bytes of memory that this process may use: the machine's, or the lowest limit of its groups.
[[nodiscard]] PENSTOCK_API std::uint64_t usable_memory_bytes(const std::string& root = {});

/// Bytes of them that can be used now without swapping or being killed.
[[nodiscard]] PENSTOCK_API std::uint64_t available_memory_bytes(const std::string& root = {});

/// Total time that threads of this process's group have waited for memory: the kernel's pressure
/// stall information. If no group has it, that of the machine. Nothing if the kernel has none.
[[nodiscard]] PENSTOCK_API std::optional<std::chrono::microseconds> memory_stall(
    const std::string& root = {});

/// The number of processors that this process may use, 1 or more: those of its affinity, or the
/// equivalent of its groups' share of CPU time, rounded up.
[[nodiscard]] PENSTOCK_API unsigned usable_processors(const std::string& root = {});

}  // namespace penstock
