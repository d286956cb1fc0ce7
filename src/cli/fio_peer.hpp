// SPDX-License-Identifier: Apache-2.0
// fio on the same file, with the same block size and depth, the same way past the page cache. Its
// CPU seconds are those of its job, not of its process.
#pragma once

#include "cli/bench_job.hpp"
#include "cli/progress.hpp"

#include <string>

namespace penstock::cli {

class FioPeer {
public:
    /// Throws Error with what to install when fio is not here.
    explicit FioPeer(Progress& progress);

    [[nodiscard]] const std::string& version() const { return version_; }

    /// Takes the better of its engines io_uring and libaio for this row, by a short run of each.
    void choose(const JobSpec& job, const Target& target);
    [[nodiscard]] const std::string& engine() const { return engine_; }

    [[nodiscard]] Sample run(const JobSpec& job, const Target& target, double seconds);

private:
    [[nodiscard]] Sample run_with(const std::string& engine, const JobSpec& job,
                                  const Target& target, double seconds);

    Progress& progress_;
    std::string version_;
    std::string engine_;
};

}  // namespace penstock::cli
