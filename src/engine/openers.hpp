// SPDX-License-Identifier: Apache-2.0
// Who opens the files of paths: threads of their own for each device, so that a server that does
// not answer stops the transfers to it and no others.
//
// The device of a path is not known before it is open. What an earlier opening in the same folder
// found is taken; else what the table of mounts says of the text of the path. A symbolic link into
// a file system that hangs, in a folder of which nothing was opened yet, counts as the place of the
// link.
#pragma once

#include "base/clock.hpp"
#include "engine/job.hpp"
#include "os/file.hpp"
#include "os/machine/mount_table.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace penstock::engine {

class Openers {
public:
    /// Without threads, the posting thread runs the job.
    Openers(bool threads, const base::Clock& clock) : threads_(threads), clock_(clock) {}
    Openers(const Openers&) = delete;
    Openers& operator=(const Openers&) = delete;

    /// Any thread. Stays where it is.
    [[nodiscard]] Executor& of(const std::string& path);
    /// A file was opened by this path.
    void learn(const std::string& path, DeviceId device);

    // fork(): see fork.hpp. Openings continue during it; the lock is released in the child too.
    void before_fork() { mutex_.lock(); }
    void after_fork() { mutex_.unlock(); }

private:
    DeviceId device_of(const std::string& folder);

    const bool threads_;
    const base::Clock& clock_;
    InlineExecutor inline_executor_;
    std::mutex mutex_;
    std::map<DeviceId, std::unique_ptr<Workers>> pools_;
    std::unordered_map<std::string, DeviceId> learnt_;  ///< by folder
    std::vector<os::Mount> mounts_;
    base::Nanos mounts_read_ = 0;
};

}  // namespace penstock::engine
