// SPDX-License-Identifier: Apache-2.0
#include "engine/fork.hpp"

#include "engine/core.hpp"
#include "engine/depth_limit.hpp"
#include "engine/descriptors.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock::engine {

namespace {

// The engines of this process. Never destroyed: a fork may come while statics are torn down.
struct Registry {
    std::mutex renewal;  ///< taken before the other
    std::mutex mutex;    ///< of what follows
    std::vector<Core*> cores;
    std::uint32_t forks = 0;  ///< that are coming: engines rest until it is 0
};

Registry& registry() {
    static auto* const instance = new Registry;
    return *instance;
}

// Whether this thread is between prepare_fork() and its fork.
thread_local bool prepared = false;

void fork_is_over() {
    prepared = false;
    if (--registry().forks == 0) {
        for (Core* core : registry().cores) {
            core->resume();
        }
    }
}

void before_fork() {
    registry().renewal.lock();
    registry().mutex.lock();
    registry().forks += prepared ? 0 : 1;
    for (Core* core : registry().cores) {
        core->before_fork();
    }
    Descriptors::of_process().before_fork();
    DepthLimit::mutex().lock();
}

void after_fork_in_parent() {
    DepthLimit::mutex().unlock();
    Descriptors::of_process().after_fork_in_parent();
    for (Core* core : registry().cores) {
        core->after_fork_in_parent();
    }
    fork_is_over();
    registry().mutex.unlock();
    registry().renewal.unlock();
}

void after_fork_in_child() {
    DepthLimit::mutex().unlock();
    Descriptors::of_process().after_fork_in_child();
    for (Core* core : registry().cores) {
        core->after_fork_in_child();
    }
    registry().cores.clear();
    registry().forks = 0;
    prepared = false;
    registry().mutex.unlock();
    registry().renewal.unlock();
}

}  // namespace

void prepare_fork() {
    const std::lock_guard lock(registry().mutex);
    if (!std::exchange(prepared, true)) {
        ++registry().forks;
    }
    for (Core* core : registry().cores) {
        core->come_to_rest();
    }
}

void end_fork() {
    const std::lock_guard lock(registry().mutex);
    if (prepared) {
        fork_is_over();
    }
}

void register_for_fork(Core& core) {
    static const int installed =
        ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    static_cast<void>(installed);
    const std::lock_guard lock(registry().mutex);
    registry().cores.push_back(&core);
}

std::mutex& renewal_mutex() {
    return registry().renewal;
}

void unregister_for_fork(Core& core) {
    const std::lock_guard lock(registry().mutex);
    auto& cores = registry().cores;
    cores.erase(std::remove(cores.begin(), cores.end(), &core), cores.end());
}

}  // namespace penstock::engine
