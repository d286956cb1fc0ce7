// SPDX-License-Identifier: Apache-2.0
// A watch of a run, by a terminal or by the caller's function: it gets reports, and may stop it.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::probe {

class Watch {
public:
    Watch() = default;
    virtual ~Watch() = default;
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    /// Called at least ten times a second. What it throws ends the run, and nothing is left.
    virtual void check() = 0;
    /// Whether a report is wanted now: a long text need not be made otherwise.
    [[nodiscard]] virtual bool due() const = 0;
    /// So many bytes moved in so many seconds.
    virtual void moved(std::uint64_t bytes, double seconds) = 0;
    /// The scratch file is being filled: so many bytes of so many.
    virtual void filled(const std::string& path, std::uint64_t bytes, std::uint64_t of,
                        double seconds) = 0;
};

}  // namespace penstock::probe
