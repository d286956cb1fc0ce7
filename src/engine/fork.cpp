// SPDX-License-Identifier: Apache-2.0
#include "engine/fork.hpp"

#include "engine/core.hpp"
#include "engine/descriptors.hpp"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace penstock::engine {

namespace {

// The engines of this process. Never destroyed: a fork may come while statics are torn down.
struct Registry {
    std::mutex renewal;  ///< taken before the other
    std::mutex mutex;
    std::vector<Core*> cores;
};

Registry& registry() {
    static auto* const instance = new Registry;
    return *instance;
}

void before_fork() {
    registry().renewal.lock();
    registry().mutex.lock();
    for (Core* core : registry().cores) {
        core->before_fork();
    }
    Descriptors::of_process().before_fork();
}

void after_fork_in_parent() {
    Descriptors::of_process().after_fork_in_parent();
    for (Core* core : registry().cores) {
        core->after_fork_in_parent();
    }
    registry().mutex.unlock();
    registry().renewal.unlock();
}

void after_fork_in_child() {
    Descriptors::of_process().after_fork_in_child();
    for (Core* core : registry().cores) {
        core->after_fork_in_child();
    }
    registry().cores.clear();
    registry().mutex.unlock();
    registry().renewal.unlock();
}

}  // namespace

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
