// SPDX-License-Identifier: Apache-2.0
// A `.pt` file: a state and the offsets of its storages.
//
// Written: the zip of torch.save with the records data.pkl, byteorder, version and
// .data/serialization_id first and the storages data/0, data/1, ... after them, so that all small
// records are in one place. There is no `.format_version`: a reader that finds one computes offsets
// by torch's own layout instead of looking them up.
//
// Read: such a zip of any torch since 1.6, and the legacy form before it (pickles one after
// another, then each storage after its length).
#pragma once

#include "format/pickle/pickle.hpp"
#include "format/value.hpp"
#include "format/zip/zip.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::format::torch_file {

class Layout {
public:
    /// `folder`: the archive's own name, "archive" or the stem of the file. Payload i of `file()`
    /// is storage i of the tree.
    [[nodiscard]] static Result<Layout> make(const ValueTree& tree, const std::string& folder,
                                             const PickleOptions& options = {});

    /// A layout that grows: storages as they come, then the pickle and the directory. `folder`: as
    /// above.
    [[nodiscard]] static Layout begin(std::string folder);
    /// Adds the next storage. `file()` ends with its payload then.
    void append(std::uint64_t bytes);
    /// Ends it. The tree has the storages that were added. Errors: those of make().
    [[nodiscard]] Result<void> finish(const ValueTree& tree, const PickleOptions& options = {});

    [[nodiscard]] const FileLayout& file() const noexcept { return zip_.file(); }
    [[nodiscard]] std::uint64_t payload_offset(std::size_t storage) const {
        return zip_.payload_offset(storage + first_);
    }
    /// Offset of a storage's CRC in its local header.
    [[nodiscard]] std::uint64_t crc_offset(std::size_t storage) const {
        return zip_.crc_offset(storage + first_);
    }
    /// Must be called before a range that holds the CRC is written: the local header, or the
    /// directory.
    void set_crc(std::size_t storage, std::uint32_t crc) { zip_.set_crc(storage + first_, crc); }
    /// Storages whose CRC must be known for a range of the file.
    [[nodiscard]] std::vector<std::size_t> crcs_in(FileRange range) const;
    [[nodiscard]] std::uint64_t directory_offset() const noexcept {
        return zip_.directory_offset();
    }

private:
    zip::Layout zip_;
    std::size_t first_ = 0;  // record number of storage 0
    // While it grows:
    std::string folder_;
    std::vector<zip::NewRecord> records_;
};

enum class Form : std::uint8_t {
    kZip,
    kLegacy,
    kNpz,  ///< arrays of NumPy, read as a dict of tensors
};

struct File {
    ValueTree tree;
    Form form = Form::kZip;
    /// One per storage of the tree, with the place of its bytes. CRC 0: none was computed.
    std::vector<zip::Record> storages;
    std::uint64_t bytes = 0;  ///< of all that belongs to it; others may follow
    bool big_endian = false;  ///< its storages are
    /// If they are: the bytes of each storage that are turned together; 0 and 1: none.
    std::vector<std::uint8_t> swap_units;
};

/// Reads everything but the storages, also of a `.npz`. `check_crcs` adds the CRCs of the storages,
/// which reads the whole file; that of the pickle is always checked.
[[nodiscard]] Result<File> read(ByteSource& source, bool check_crcs = false);

}  // namespace penstock::format::torch_file
