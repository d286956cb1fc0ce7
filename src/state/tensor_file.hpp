// SPDX-License-Identifier: Apache-2.0
// A file of tensors: which form it has, by its content, and what it says of its tensors. The one
// place that knows that, for files and for bytes in memory.
#pragma once

#include "format/byte_source.hpp"
#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "format/torch_file.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <string>
#include <variant>

namespace penstock::state {

using FileContent =
    std::variant<format::torch_file::File, format::safetensors::Header, format::ShardIndex>;

/// All but the data. `path`: for messages; one that ends in .safetensors is never a `.pt`. Throws
/// Error: kDamaged for what the form does not allow.
[[nodiscard]] FileContent read_content(format::ByteSource& source, const std::string& path);

/// The same of what is known to be an index.
[[nodiscard]] format::ShardIndex read_index(format::ByteSource& source, const std::string& path);

/// A file that is open, and what it says.
struct TensorFile {
    File file;
    std::string path;
    FileContent content;
};

/// Throws as read_content() and FileSystem::open().
[[nodiscard]] TensorFile open_tensor_file(Engine& engine, const FileSystem& files,
                                          const std::string& path);

}  // namespace penstock::state
