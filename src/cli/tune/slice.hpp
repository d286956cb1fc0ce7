// SPDX-License-Identifier: Apache-2.0
// One slice: a stretch of the scratch file read or written once, as one transfer, by an engine that
// has the settings. The measured time is that of a caller who waits for so many bytes: filling the
// device at the start and draining it at the end are included, starting threads and rings is not.
#pragma once

#include "cli/scratch.hpp"
#include "cli/tune/settings.hpp"
#include "report/progress.hpp"

#include <penstock/penstock.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

namespace penstock::cli {

class Slices {
public:
    /// Slices are multiples of this: the largest block.
    static constexpr std::uint64_t kGrain = std::uint64_t{16} << 20;

    Slices(const Target& target, const EngineOptions& defaults, report::Progress& progress);

    /// The bytes that calibrate(true) writes, and the least that a slice of writes has after it.
    static constexpr std::uint64_t kCalibrationBytes = 8 * kGrain;
    static constexpr std::uint64_t kSliceLeast = 2 * kGrain;

    /// Chooses the bytes of a slice: about `seconds` at the rate of the defaults. Slices of writes
    /// are shorter where `write_limit` would be reached after a few.
    void calibrate(bool write, double seconds, std::uint64_t write_limit);
    [[nodiscard]] std::uint64_t slice_bytes(bool write) const {
        return write ? write_bytes_ : read_bytes_;
    }
    /// Throws Error and Interrupted.
    [[nodiscard]] Sample run(const TuneSettings& settings, bool write);
    /// The same to or from memory of any place, at least 4 grains, by an engine with these options.
    [[nodiscard]] Sample run(const EngineOptions& options, const Memory& memory, bool write);
    /// The bytes that the device reads while it does one more small request, at the depth of a
    /// list: what `gap_bytes` means. Throws as run() does.
    [[nodiscard]] std::uint64_t gap_bytes(const TuneSettings& settings);
    /// Bytes written in all, those of the scratch file included.
    [[nodiscard]] std::uint64_t written_bytes() const { return written_bytes_; }

private:
    [[nodiscard]] TransferRequest request(std::uint64_t bytes, bool write, const Memory& memory);
    [[nodiscard]] TransferRequest small_reads(std::size_t count);
    /// Seconds of one of so many small reads.
    [[nodiscard]] double small_read_s(const TuneSettings& settings, std::size_t count);
    [[nodiscard]] Sample measured(Engine& engine, TransferRequest request, const std::string& what);

    const Target& target_;
    EngineOptions defaults_;
    report::Progress& progress_;
    MemoryPool pool_;
    Buffer memory_;
    std::uint64_t cursor_ = 0;
    std::mt19937_64 random_{1};
    std::uint64_t read_bytes_ = 4 * kGrain;
    std::uint64_t write_bytes_ = kCalibrationBytes / 2;
    std::uint64_t written_bytes_;
};

}  // namespace penstock::cli
