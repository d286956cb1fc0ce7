// SPDX-License-Identifier: Apache-2.0
// Reads many stretches of one file into memory at the speed of the device, and checks them against
// their checksums on other cores while the next ones are read.
//
//   runs    what is wanted, in the order of the file; small gaps are read too and thrown away, so
//           that a file of small tensors is read as one
//   steps   transfers of some MiB each; a window of them is with the engine
//   fresh   memory that nobody has touched is faulted in ahead of its step, on the other cores: the
//           device would wait for the kernel to do it page by page
//   sums    a piece is summed when the step with its last byte is through
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/progress.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace penstock::stream {

/// A stretch of a file and what is known of its bytes.
struct Wanted {
    std::uint64_t offset = 0;  ///< in the file
    std::span<std::byte> into;
    /// XXH3 of each `piece_bytes` of it, from its beginning on; or none.
    std::span<const std::uint64_t> sums = {};
    std::uint64_t piece_bytes = 0;
    std::uint32_t crc = 0;  ///< CRC-32 of all of it; 0: not known
};

struct ReadFileOptions {
    /// The memory was never touched. Between two stretches that are as far apart in memory as in
    /// the file it belongs to them too, and may be filled with what lies between them.
    bool fresh = false;
    bool verify = true;
};

/// A checksum that is wrong.
struct WrongSum {
    std::size_t wanted = 0;    ///< its number
    std::uint64_t offset = 0;  ///< of the piece, in the file
    std::uint64_t bytes = 0;
    std::uint64_t expected = 0;
    std::uint64_t found = 0;
};

/// Reads all of it. Throws Error: kEndOfFile where the file has become shorter. The first wrong
/// checksum in the order of the file, or nothing.
[[nodiscard]] std::optional<WrongSum> read_file(Engine& engine, const File& file,
                                                std::span<const Wanted> wanted,
                                                const ReadFileOptions& options = {},
                                                const Progress& progress = {});

/// The same of what is in memory already.
[[nodiscard]] std::optional<WrongSum> check_sums(std::span<const Wanted> wanted);

}  // namespace penstock::stream
