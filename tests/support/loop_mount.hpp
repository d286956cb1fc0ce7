// SPDX-License-Identifier: Apache-2.0
// File systems of every kind for tests that run as root: a loop device over anonymous memory, made
// and mounted where only this process sees it. Nothing outlives the process, also when it is
// killed:
//
//   memory       a memfd: no file on any disk
//   loop device  LO_FLAGS_AUTOCLEAR: gone with its last user
//   mount        in a mount namespace of this process; the mount point lies on a tmpfs mounted
//   there
//
// A mount namespace belongs to a thread and to the threads that it starts later. So make the first
// LoopMount on the main thread, before the threads that shall see it.
#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::support {

struct LoopOptions {
    /// "ext4", "xfs", "btrfs"; "overlay" (over ext4); "tmpfs" (of `bytes`, no loop device); "none"
    /// (the bare loop device).
    std::string file_system = "ext4";
    std::uint64_t bytes = std::uint64_t{512}
                          << 20;  ///< XFS wants 300 MiB; memory is taken as it is written
    std::uint32_t sector_bytes = 512;
    std::vector<std::string> mkfs_arguments = {};
    std::string mount_data = {};  ///< "data=journal", "nodatasum", ...
    int backing_fd = -1;          ///< a file to lie on, instead of anonymous memory
    bool format = true;           ///< else `backing_fd` has the file system already
};

/// A new empty folder that only this process sees (and what it starts): for mount points.
[[nodiscard]] base::Result<std::string> private_folder();

class LoopMount {
public:
    /// kUnsupported where this cannot run (not root, no loop devices, no mkfs, no such file system
    /// in the kernel): skip the test by that message. Anything else is a failure.
    [[nodiscard]] static base::Result<LoopMount> make(const LoopOptions& options = {});

    LoopMount(LoopMount&& other) noexcept = default;
    LoopMount& operator=(LoopMount&&) = delete;
    LoopMount(const LoopMount&) = delete;
    LoopMount& operator=(const LoopMount&) = delete;
    ~LoopMount();

    /// The folder; empty for "none".
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string operator/(const std::string& name) const {
        return path_ + "/" + name;
    }
    /// "/dev/loop3"; empty for "tmpfs".
    [[nodiscard]] const std::string& device() const { return device_; }

private:
    LoopMount() = default;

    base::UniqueFd loop_;
    std::string device_;
    std::string path_;
    std::vector<std::string> mounts_;  ///< in the order in which they were made
};

}  // namespace penstock::support

/// LoopMount `name`, or the test is skipped by name (or fails, when something broke).
#define PENSTOCK_LOOP_MOUNT(name, ...)                                                     \
    auto name##_made = ::penstock::support::LoopMount::make(__VA_ARGS__);                  \
    if (!name##_made && name##_made.error().code == ::penstock::ErrorCode::kUnsupported) { \
        GTEST_SKIP() << name##_made.error().describe();                                    \
    }                                                                                      \
    ASSERT_TRUE(name##_made) << name##_made.error().describe();                            \
    ::penstock::support::LoopMount& name = *name##_made
