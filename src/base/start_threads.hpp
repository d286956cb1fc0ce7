// SPDX-License-Identifier: Apache-2.0
// Threads that only make something faster: fewer, or none, are enough.
#pragma once

#include <cstddef>
#include <new>
#include <system_error>
#include <vector>

namespace penstock::base {

/// Adds threads that run `work` until there are `wanted` in all, or until the system refuses
/// (ulimit -u, pids.max of the cgroup, memory): maybe none. The caller does the rest of the work.
template <typename Thread, typename Work>
void start_threads(std::vector<Thread>& threads, std::size_t wanted, const Work& work) {
    // An exception from here would leave threads running in members of an unfinished object.
    try {
        threads.reserve(wanted);
        while (threads.size() < wanted) {
            threads.emplace_back(work);
        }
    } catch (const std::system_error&) {  // EAGAIN
    } catch (const std::bad_alloc&) {
    }
}

}  // namespace penstock::base
