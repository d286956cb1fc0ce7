// SPDX-License-Identifier: Apache-2.0
// The processors that the calling thread may use.
#pragma once

namespace penstock::os {

/// Processors that this process may run on (its affinity, not the machine's number); at least 1.
[[nodiscard]] unsigned usable_cpus();

}  // namespace penstock::os
