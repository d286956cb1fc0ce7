// SPDX-License-Identifier: Apache-2.0
// The log of an update of one file in place: the new bytes of tensors, and of the checksums that
// cover them. It lies next to the file, as `<name>.penstock-update`, from before the first byte of
// the file changes until the last one is durable. Pure: bytes in, description out.
//
//   head     described below, with its own checksum
//   ranges   the new bytes of whole tensors (of whole storages in a .pt), one after another
//
// A log is written under a temporary name, synced and renamed: under its own name it is complete.
// docs/formats.md has its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::state {

inline constexpr std::string_view kUpdateSuffix = ".penstock-update";
inline constexpr std::string_view kUpdateMagic = "PENSTOCK UPDATE1";
inline constexpr std::uint64_t kUpdateHeadBytesMax = std::uint64_t{64} << 20;
/// Magic, checksum of the rest of the head, bytes of the head.
inline constexpr std::uint64_t kUpdatePrefixBytes = 32;
/// The ranges have a checksum each so many bytes.
inline constexpr std::uint64_t kUpdatePieceBytes = std::uint64_t{256} << 10;
/// Witnesses: of what changes and of what does not, and each in one sector.
inline constexpr std::size_t kUpdateWitnessesMax = 256;
inline constexpr std::uint64_t kUpdateSectorBytes = 512;
inline constexpr std::size_t kUpdateFollowersMax = 65'536;

struct UpdateLog {
    /// New bytes of the file, which are in the log from byte `at` on.
    struct Range {
        std::uint64_t offset = 0;  ///< in the file
        std::uint64_t bytes = 0;
        std::uint64_t at = 0;
        std::size_t first_sum = 0;  ///< in `sums`; follows from the ranges before it
    };
    /// New bytes of the file, which are in the head: checksums.
    struct Patch {
        std::uint64_t offset = 0;
        std::string bytes;
    };
    /// A few bytes of one sector, and their checksums without the update and with it. What is in
    /// the file is the one or the other, whatever of the update has reached it.
    struct Witness {
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;
        std::uint64_t before = 0;
        std::uint64_t after = 0;
    };

    std::uint64_t id = 0;         ///< random, of one call: its logs share it
    std::uint64_t log_bytes = 0;  ///< of all of the log
    std::uint64_t file_bytes = 0;
    /// The bytes before the first tensor of the file, and those after the last, with the patches:
    /// where they end and begin, and their checksum.
    std::uint64_t head_end = 0;
    std::uint64_t tail_begin = 0;
    std::uint64_t structure_sum = 0;
    /// The name of the log that makes this one valid, in the same folder; empty: it is valid by
    /// itself. That log has no ranges.
    std::string leader = {};
    std::vector<std::string> followers = {};  ///< the names of all logs that it makes valid
    std::vector<Range> ranges = {};           ///< in the order of the file
    std::vector<Patch> patches = {};          ///< likewise
    std::vector<Witness> witnesses = {};
    std::vector<std::uint64_t> sums = {};  ///< XXH3 of each piece of each range

    [[nodiscard]] std::uint64_t pieces() const;
};

/// Whether it makes other logs valid, and has no bytes of a file itself.
[[nodiscard]] inline bool is_leader(const UpdateLog& log) {
    return log.leader.empty() && !log.followers.empty();
}

/// The head. Its length depends on the number of elements and the lengths of texts alone.
[[nodiscard]] std::string render_update_log(const UpdateLog& log);

/// The bytes of the head by the first kUpdatePrefixBytes of a log; nothing if they are of no log.
[[nodiscard]] std::optional<std::uint64_t> update_head_bytes(std::span<const std::byte> prefix);

/// Parses the head of a log of `log_bytes` bytes. Nothing if it was changed or cut short.
[[nodiscard]] std::optional<UpdateLog> parse_update_log(std::span<const std::byte> head,
                                                        std::uint64_t log_bytes);

}  // namespace penstock::state
