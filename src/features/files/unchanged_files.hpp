// SPDX-License-Identifier: Apache-2.0
// Open files that nobody may write to: rows in memory are of the bytes that were there.
#pragma once

#include <penstock/file.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace penstock::features {

class UnchangedFiles {
public:
    static constexpr std::chrono::milliseconds kInterval{50};

    explicit UnchangedFiles(std::vector<File> files);
    /// Throws Error: kDamaged for a file that was overwritten in place. Reads past the end report
    /// one that was cut. Looks at the files at most every kInterval. Thread-safe.
    void check();

private:
    std::vector<File> files_;
    std::vector<FileStatus> opened_;
    std::atomic<std::int64_t> next_look_{0};  // of the steady clock, ns
};

}  // namespace penstock::features
