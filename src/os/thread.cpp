// SPDX-License-Identifier: Apache-2.0
#include "os/thread.hpp"

#include <sched.h>

#include <cerrno>
#include <memory>

namespace penstock::os {

unsigned usable_cpus() {
    // The set must be as large as the kernel's, which is unknown: EINVAL means too small.
    for (unsigned cpus = 1024; cpus <= 1U << 20; cpus *= 2) {
        const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
            CPU_ALLOC(cpus), [](cpu_set_t* s) { CPU_FREE(s); });
        if (!set) {
            break;
        }
        const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
        CPU_ZERO_S(bytes, set.get());
        if (::sched_getaffinity(0, bytes, set.get()) == 0) {
            const int count = CPU_COUNT_S(bytes, set.get());
            return count > 0 ? static_cast<unsigned>(count) : 1;
        }
        if (errno != EINVAL) {
            break;
        }
    }
    return 1;
}

}  // namespace penstock::os
