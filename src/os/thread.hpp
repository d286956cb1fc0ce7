// SPDX-License-Identifier: Apache-2.0
// The thread that calls, and the processors it may use.
#pragma once

namespace penstock::os {

/// Names the calling thread for ps, top and debuggers; 15 characters are kept.
void set_thread_name(const char* name);

/// Processors that this process may run on (its affinity, not the machine's number); at least 1.
[[nodiscard]] unsigned usable_cpus();

}  // namespace penstock::os
