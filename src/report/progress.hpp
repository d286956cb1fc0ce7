// SPDX-License-Identifier: Apache-2.0
// Progress on stderr: one line rewritten on a terminal, a line every few seconds elsewhere.
#pragma once

#include "probe/watch.hpp"

#include <cstdint>
#include <cstdio>
#include <string>

namespace penstock::report {

class Progress final : public probe::Watch {
public:
    explicit Progress(std::FILE* out = stderr);
    ~Progress() override;

    /// The prefix of every line: the step, for example "[3/12] ". Shown with the next show().
    void step(std::string prefix);
    /// Rate-limited: may be called often, but call due() before making a long text.
    void show(const std::string& text);
    [[nodiscard]] bool due() const override;
    /// Throws Interrupted.
    void check() override;
    void moved(std::uint64_t bytes, double seconds) override;
    void filled(const std::string& path, std::uint64_t bytes, std::uint64_t of,
                double seconds) override;
    /// Clears the line on a terminal, before other output.
    void clear();

private:
    std::FILE* out_;
    bool terminal_;
    bool dirty_ = false;
    std::string prefix_;
    std::int64_t next_ns_ = 0;
};

}  // namespace penstock::report
