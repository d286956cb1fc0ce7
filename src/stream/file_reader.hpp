// SPDX-License-Identifier: Apache-2.0
// Reads many stretches of one file into memory at the speed of the device, and checks them against
// their checksums on other cores while the next ones are read.
//
//   runs    the wanted stretches, in the order of the file; small gaps are read too and discarded,
//           so that a file of small tensors is read as one
//   steps   transfers of some MiB each; a window of them is with the engine
//   fresh   untouched memory is faulted in ahead of its step, on the other cores: otherwise the
//           device would wait for the kernel to do it page by page
//   sums    a piece is summed when the step with its last byte is finished; one that went to a GPU
//           is copied back for that
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace penstock::stream {

/// A stretch of a file and its checksums, if known.
struct Wanted {
    std::uint64_t offset = 0;  ///< in the file
    Memory into;               ///< of the host or of a GPU
    /// XXH3 of each `piece_bytes` of it, from its beginning; or none.
    std::span<const std::uint64_t> sums = {};
    std::uint64_t piece_bytes = 0;
    std::uint32_t crc = 0;  ///< CRC-32 of all of it; 0: not known
};

struct ReadFileOptions {
    /// The memory holds nothing, and was never touched. Between two stretches that are as far apart
    /// in memory as in the file, the gap is such memory too, and may be overwritten with the gap of
    /// the file.
    bool fresh = false;
    bool faulted_in = false;  ///< it is fresh, but its pages are there: it was other memory before
    bool verify = true;
    CachePolicy cache = CachePolicy::kAuto;
};

/// A checksum mismatch.
struct WrongSum {
    std::size_t wanted = 0;    ///< index of the stretch
    std::uint64_t offset = 0;  ///< of the piece, in the file
    std::uint64_t bytes = 0;
    std::uint64_t expected = 0;
    std::uint64_t found = 0;
};

/// Reads all of it. Throws Error: kEndOfFile if the file has become shorter. Returns the first
/// checksum mismatch in the order of the file, or nothing.
[[nodiscard]] std::optional<WrongSum> read_file(Engine& engine, const File& file,
                                                std::span<const Wanted> wanted,
                                                const ReadFileOptions& options = {},
                                                const Progress& progress = {});

/// Checks stretches that are in memory already, in the same way.
[[nodiscard]] std::optional<WrongSum> check_sums(std::span<const Wanted> wanted);

}  // namespace penstock::stream
