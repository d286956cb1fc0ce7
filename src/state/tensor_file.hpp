// SPDX-License-Identifier: Apache-2.0
// A file of tensors: its form, detected by content, and its description of the tensors. Only this
// code knows the forms, for files and for bytes in memory.
#pragma once

#include "format/byte_source.hpp"
#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "format/torch_file.hpp"
#include "state/update/find_update.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <optional>
#include <string>
#include <variant>

namespace penstock::state {

using FileContent =
    std::variant<format::torch_file::File, format::safetensors::Header, format::ShardIndex>;

/// Reads everything but the data. `path`: for messages; one that ends in .safetensors is never a
/// `.pt`. Throws Error: kDamaged for a violation of the form.
[[nodiscard]] FileContent read_content(format::ByteSource& source, const std::string& path);

/// Does the same for a file that must be an index.
[[nodiscard]] format::ShardIndex read_index(format::ByteSource& source, const std::string& path);

/// An open file, and its content.
struct TensorFile {
    File file;
    std::string path;
    FileContent content = {};
    /// Whether it is a shard of torch.save, and the content is the header that it would have as a
    /// .safetensors.
    bool is_header_made = false;
    /// The status of the file, before anything of it was read.
    std::optional<FileStatus> status = {};
    /// An update that did not come to its end: the content has its checksums, and the bytes of its
    /// tensors are in its log.
    OpenUpdatePtr update = {};
    std::string note = {};         ///< of a log that is left alone, for people
    std::string update_path = {};  ///< where the log of an update of it would be
    bool is_update_there = false;  ///< whatever it is
    /// With `update`: nobody is at work on it.
    bool is_interrupted = false;
};

/// Whether it is one file, which nothing was written to between the two.
[[nodiscard]] inline bool is_unwritten(const FileStatus& a, const FileStatus& b) {
    return a.device == b.device && a.inode == b.inode && a.bytes == b.bytes &&
           a.modified_ns == b.modified_ns;
}

/// Throws as read_content() and FileSystem::open(), and for a damaged log of an update.
[[nodiscard]] TensorFile open_tensor_file(Engine& engine, const FileSystem& files,
                                          const std::string& path);

/// Does the same for a file that is open. `path`: for messages. `place`: its path for the look for
/// a log; empty: the one that the system knows.
[[nodiscard]] TensorFile read_tensor_file(Engine& engine, const File& file, const std::string& path,
                                          const std::string& place, std::uint64_t begin);

}  // namespace penstock::state
