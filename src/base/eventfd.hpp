// SPDX-License-Identifier: Apache-2.0
// Descriptors of callers to which 8 bytes are written when something is over.
#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace penstock::base {

/// Whether the descriptor is an eventfd, for callers who write 8 bytes into it. An eventfd has no
/// file type, and is the only such descriptor that accepts a number; a 0 changes nothing.
inline bool is_eventfd(int fd) {
    struct stat status {};
    const std::uint64_t nothing = 0;
    return ::fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == 0 &&
           ::write(fd, &nothing, sizeof nothing) == sizeof nothing;
}

inline void add_one(int eventfd) noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(eventfd, &one, sizeof one);
}

/// The kernel's number of an eventfd (Linux 5.2), or 0: of another file, and where it gives none.
[[nodiscard]] std::uint64_t eventfd_number(int eventfd);

/// Whether two descriptors are of one eventfd. A kernel that does not give the number (before Linux
/// 5.2) makes this false.
[[nodiscard]] bool are_of_one_eventfd(int a, int b);

using SharedEventfd = std::shared_ptr<const UniqueFd>;

/// Descriptors of our own for eventfds of callers, who may close theirs at any time: the number
/// could be another file's when it is written to. All users of one eventfd share one descriptor, so
/// that ten thousand transfers of an event loop cost one. Thread-safe.
class EventfdCopies {
public:
    /// kSystem when there is no descriptor left. Throws std::bad_alloc.
    [[nodiscard]] Result<SharedEventfd> copy_of(int eventfd);

private:
    std::mutex mutex_;
    std::map<int, std::weak_ptr<const UniqueFd>> copies_;  ///< the last one of each number
};

}  // namespace penstock::base
