// SPDX-License-Identifier: Apache-2.0
// Threads that only make something faster: what cannot be had is gone without.
#pragma once

#include <cstddef>
#include <new>
#include <system_error>
#include <vector>

namespace penstock::base {

/// Adds threads that run `work` until there are `wanted` in all, or until the system gives no more
/// (ulimit -u, pids.max of the cgroup, memory): maybe none. Whoever calls it does what is left.
template <typename Thread, typename Work>
void start_threads(std::vector<Thread>& threads, std::size_t wanted, const Work& work) {
    // An exception out of here would find threads that run, in members of what is not made yet.
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
