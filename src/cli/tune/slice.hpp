// SPDX-License-Identifier: Apache-2.0
// One slice: a stretch of the scratch file read or written once, as one transfer, by an engine that
// has the settings. What is timed is the time that somebody waits for so many bytes: filling the
// device at the start and letting it run dry at the end are in it, threads and rings are not.
#pragma once

#include "cli/bench/job.hpp"
#include "cli/progress.hpp"
#include "cli/scratch.hpp"
#include "cli/tune/settings.hpp"

#include <penstock/penstock.hpp>

#include <cstdint>

namespace penstock::cli {

class Slices {
public:
    /// What a slice's bytes are a multiple of: the largest block.
    static constexpr std::uint64_t kGrain = std::uint64_t{16} << 20;

    Slices(const Target& target, const EngineOptions& defaults, Progress& progress);

    /// Chooses how many bytes a slice has: about `seconds` at the rate of the defaults.
    void calibrate(bool write, double seconds);
    [[nodiscard]] std::uint64_t slice_bytes(bool write) const {
        return write ? write_bytes_ : read_bytes_;
    }
    /// Throws Error and Interrupted.
    [[nodiscard]] Sample run(const TuneSettings& settings, bool write);
    /// By slices, in all.
    [[nodiscard]] std::uint64_t written_bytes() const { return written_bytes_; }

private:
    [[nodiscard]] TransferRequest request(std::uint64_t bytes, bool write);

    const Target& target_;
    EngineOptions defaults_;
    Progress& progress_;
    MemoryPool pool_;
    Buffer memory_;
    std::uint64_t cursor_ = 0;
    std::uint64_t read_bytes_ = 4 * kGrain;
    std::uint64_t write_bytes_ = 4 * kGrain;
    std::uint64_t written_bytes_ = 0;
};

}  // namespace penstock::cli
