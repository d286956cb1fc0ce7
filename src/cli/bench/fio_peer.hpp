// SPDX-License-Identifier: Apache-2.0
// fio on the same file, with the same block size and depth, bypassing the page cache in the same
// way. CPU seconds are those of its job, not of its process. On several files it has a job (a
// thread) each.
#pragma once

#include "cli/bench/options.hpp"
#include "cli/scratch.hpp"
#include "report/progress.hpp"

#include <string>
#include <vector>

namespace penstock::cli {

/// A path in fio's syntax: an unescaped colon would begin the next path.
[[nodiscard]] std::string fio_filename(const std::string& path);

class FioPeer {
public:
    /// Throws Error with the package to install when fio is not found.
    explicit FioPeer(report::Progress& progress);

    [[nodiscard]] const std::string& version() const { return version_; }

    /// Takes the better of its engines io_uring and libaio for this row, by a short run of each.
    void choose(const JobSpec& job, const std::vector<const Target*>& targets);
    [[nodiscard]] const std::string& engine() const { return engine_; }
    void use(const std::string& engine) { engine_ = engine; }

    [[nodiscard]] Sample run(const JobSpec& job, const std::vector<const Target*>& targets,
                             double seconds);

private:
    [[nodiscard]] Sample run_with(const std::string& engine, const JobSpec& job,
                                  const std::vector<const Target*>& targets, double seconds);

    report::Progress& progress_;
    std::string version_;
    std::string engine_;
};

}  // namespace penstock::cli
