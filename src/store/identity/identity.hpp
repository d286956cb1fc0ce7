// SPDX-License-Identifier: Apache-2.0
// The identity of a store, and the two small texts that say it.
//
//   <first folder>/.store                 whose folder it is, and which record it wrote last in
//                                         each other folder
//   <other folder>/.store-<identity>      which save of that store wrote there last
//
// Each is a few lines "key values", and ends in a checksum of the lines before it. docs/formats.md
// has them. Pure.
#pragma once

#include <penstock/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {

inline constexpr std::string_view kIdentityName = ".store";
inline constexpr std::size_t kIdentityDigits = 32;
inline constexpr std::uint64_t kIdentityBytesMax = 64 << 10;

/// 32 random hexadecimal digits.
[[nodiscard]] std::string make_identity();
[[nodiscard]] bool is_identity(std::string_view text);
/// ".store-<identity>"
[[nodiscard]] std::string record_name(std::string_view identity);

/// The place of a file when it was written. A copy of it is another file, or is at another place.
struct FilePlace {
    std::uint64_t inode = 0;
    DeviceId device;
    std::uint64_t path_hash = 0;  ///< of the folder's path

    /// Whether a file with this place is the one that is now at `now`: its inode, and its path or
    /// its device. A file that was renamed keeps its device; that of a disk may change at a boot.
    [[nodiscard]] bool is_same(const FilePlace& now) const {
        return inode == now.inode && (path_hash == now.path_hash || device == now.device);
    }
};

/// The words of a record in another folder: 0: there is no such word.
struct RecordWords {
    std::uint64_t last = 0;  ///< that the record had when the store looked
    std::uint64_t next = 0;  ///< that the store was about to write

    [[nodiscard]] bool has(std::uint64_t word) const {
        return word != 0 && (word == last || word == next);
    }
};

/// The text of ".store".
struct StoreIdentity {
    std::string identity;
    std::vector<std::string> before;  ///< that the store had before, oldest first
    FilePlace place;
    std::vector<RecordWords> records;  ///< of other folders, also of those not mounted now
};

/// The text of ".store-<identity>".
struct FolderRecord {
    std::string identity;
    std::uint64_t generation = 0;  ///< of the save that wrote it: for people
    std::uint64_t word = 0;        ///< random, of this record alone; 0: nobody's any more
};

[[nodiscard]] std::string render(const StoreIdentity& identity);
[[nodiscard]] std::string render(const FolderRecord& record);
/// Nothing for a text that was cut, changed, or is of another form.
[[nodiscard]] std::optional<StoreIdentity> parse_identity(std::string_view text);
[[nodiscard]] std::optional<FolderRecord> parse_record(std::string_view text);

}  // namespace penstock::store
