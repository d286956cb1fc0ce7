// SPDX-License-Identifier: Apache-2.0
// A disk whose every write and flush is known: one file, served from memory by a FUSE daemon that
// logs what reaches it. A loop device over that file says that it has a volatile cache, so a file
// system on it sends flushes, and they arrive here as syncs.
//
//   this process      mkfs, mount, work  ->  loop device  ->  FUSE  ->  the daemon: image and log
//
// The daemon is a child that dies with this process; the mounts are in mount namespaces of the two,
// and image and log are anonymous memory: nothing is left behind, also when killed. The daemon's
// namespace has the FUSE mount alone: were it the last to hold the file system on the loop device,
// its own end would unmount that, and wait for itself.
#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::power_cut {

struct Record {
    bool flush = false;
    std::uint64_t offset = 0;
    std::span<const std::byte> bytes;  ///< of a write
};

class LoggedDisk {
public:
    /// kUnsupported where there is no FUSE, or no right to mount.
    [[nodiscard]] static base::Result<std::unique_ptr<LoggedDisk>> make(std::uint64_t bytes);
    LoggedDisk(const LoggedDisk&) = delete;
    LoggedDisk& operator=(const LoggedDisk&) = delete;
    ~LoggedDisk();

    /// The file, for a loop device.
    [[nodiscard]] int fd() const { return file_.get(); }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    /// Records so far.
    [[nodiscard]] std::uint64_t count() const;
    /// Ends the daemon; the log stays.
    void stop();
    [[nodiscard]] std::vector<Record> log() const;

private:
    struct Shared;
    explicit LoggedDisk(std::uint64_t bytes) : bytes_(bytes) {}
    [[nodiscard]] base::Result<void> start();

    std::uint64_t bytes_;
    Shared* shared_ = nullptr;
    base::UniqueFd log_fd_;
    std::span<const std::byte> log_;
    std::string folder_;
    base::UniqueFd file_;
    pid_t daemon_ = -1;
};

}  // namespace penstock::power_cut
