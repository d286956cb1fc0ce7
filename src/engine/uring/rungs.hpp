// SPDX-License-Identifier: Apache-2.0
// Which set-up flags of io_uring may be tried. The kernel's answer decides which of them are used;
// a test switches rungs off to stand on an old kernel.
#pragma once

namespace penstock::engine {

struct UringRungs {
    bool defer_taskrun = true;  ///< Linux 6.1; needs single_issuer
    bool single_issuer = true;  ///< Linux 6.0
    bool coop_taskrun = true;   ///< Linux 5.19; used where defer_taskrun is not
    bool submit_all = true;     ///< Linux 5.18

    [[nodiscard]] static constexpr UringRungs best() { return {}; }
    /// The rungs of Linux 5.15, the oldest supported kernel.
    [[nodiscard]] static constexpr UringRungs linux_5_15() { return {false, false, false, false}; }
};

}  // namespace penstock::engine
