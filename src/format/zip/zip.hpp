// SPDX-License-Identifier: Apache-2.0
// The zip that torch.save writes: stored records, no compression, one folder.
//
//   for each record   local header (30) | name | zip64 extra | padding extra | payload
//   [zeros]           to a block, so that the end is written separately from the last payload
//   directory         46 + name + zip64 extra, a record
//   end               zip64 end (56) | locator (20) | end (22)
//
// Written as a layout: sizes are known, so local headers carry them and no data descriptor follows
// a payload, and the padding extra (id 0x4246, as torch's own) puts each payload at a multiple of
// its alignment. Only the CRC is unknown until the payload has been read; it is in the local header
// and in the directory and is set there when it is known. A range of the file may be written when
// the CRCs in it are set: `crcs_in` lists these.
//
// Read from the end: end -> zip64 end -> directory -> local headers (for the length of name and
// extra, which the directory does not have). Refused: compression, encryption, several disks, names
// that occur twice or lead out of the folder, overlaps. torch's reader refuses none of these.
//
// Several archives in one file, one after the other: each counts offsets from its own beginning, so
// the size of the last one says where it begins, and so on until the first.
#pragma once

#include "format/byte_source.hpp"
#include "format/fault.hpp"
#include "format/file_layout.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::format::zip {

inline constexpr std::uint64_t kSmallAlignment = 64;
inline constexpr std::uint64_t kLargeAlignment = 4096;
inline constexpr std::uint64_t kLargeBytes = std::uint64_t{1} << 20;
inline constexpr std::size_t kNameBytesMax = 4096;
inline constexpr std::uint64_t kBehindBytesMax = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kDirectoryBytesMax = std::uint64_t{1} << 30;

struct NewRecord {
    std::string name;
    std::uint64_t bytes = 0;
    std::optional<std::string> literal;  ///< the payload itself; its CRC is set at once
};

class Layout {
public:
    /// Payload i of `file()` is the i-th record that is not a literal. Errors: names that repeat,
    /// are empty, absolute, too long or invalid UTF-8.
    [[nodiscard]] static Result<Layout> make(std::vector<NewRecord> records);
    /// Adds a record to a layout that grows, whose file() ends with its payload then. The caller
    /// sees to the names: plain, and each once.
    void append(const NewRecord& record);
    /// Ends such a layout with the directory. `records`: all that were appended, in their order.
    void finish(const std::vector<NewRecord>& records);

    [[nodiscard]] const FileLayout& file() const noexcept { return file_; }
    /// Offset of the payload of a record in the file.
    [[nodiscard]] std::uint64_t payload_offset(std::size_t record) const {
        return places_[record].payload_offset;
    }
    /// Offset of a record's CRC in its local header.
    [[nodiscard]] std::uint64_t crc_offset(std::size_t record) const;
    void set_crc(std::size_t record, std::uint32_t crc);
    /// The records whose CRC a range of the file holds in part or whole, other than literals: set
    /// them before the range is written. The directory holds all of them.
    [[nodiscard]] std::vector<std::size_t> crcs_in(FileRange range) const;
    /// The offset of the directory: from here on every CRC is needed.
    [[nodiscard]] std::uint64_t directory_offset() const noexcept { return directory_offset_; }

private:
    struct RecordPlace {
        std::uint64_t header_offset = 0;
        std::uint64_t payload_offset = 0;
        std::uint64_t local_crc = 0;      // in the file's literals
        std::uint64_t directory_crc = 0;  // likewise; 0: there is no directory yet
        std::uint32_t crc = 0;
        bool literal = false;
    };
    void add_directory(const std::vector<NewRecord>& records);

    FileLayout file_;
    std::vector<RecordPlace> places_;
    std::uint64_t payloads_ = 0;
    std::uint64_t directory_offset_ = 0;
};

struct Record {
    std::string name;
    std::uint64_t offset = 0;  ///< of the payload, in the file
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;            ///< 0: its writer computed none (or the payload's is 0)
    std::uint64_t header_offset = 0;  ///< of its local header, in the file
    std::uint64_t crc_offset = 0;     ///< of the CRC in the directory, in the file
};

/// In the order of the directory. Other archives may follow the one at the beginning of the source,
/// or up to kBehindBytesMax of other bytes. `bytes`: those of the archive.
[[nodiscard]] Result<std::vector<Record>> read_directory(ByteSource& source,
                                                         std::uint64_t* bytes = nullptr);

/// Finds the beginning of the archive that ends with the file; 0 if no archive ends there.
[[nodiscard]] Result<std::uint64_t> begin_of_last(ByteSource& source);

/// The places of the file that hold the CRC of a record: in the local header, in the data
/// descriptor behind the payload, in the directory. None if its writer computed none: the CRC is 0,
/// and that of the payload, which is read then, is not. Error: one of them holds
/// another number, or there is no descriptor where the header says so.
[[nodiscard]] Result<std::vector<std::uint64_t>> crc_places(ByteSource& source,
                                                            const Record& record);

/// Compares the bytes of a record with its CRC. Reads in pieces of 1 MiB. A CRC of 0 in the file
/// means "none": nothing is read.
[[nodiscard]] Result<void> check_crc(ByteSource& source, const Record& record);

}  // namespace penstock::format::zip
