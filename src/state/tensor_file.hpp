// SPDX-License-Identifier: Apache-2.0
// A file of tensors: its form, detected by content, and its description of the tensors. Only this
// code knows the forms, for files and for bytes in memory.
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

/// Reads everything but the data. `path`: for messages; one that ends in .safetensors is never a
/// `.pt`. Throws Error: kDamaged for a violation of the form.
[[nodiscard]] FileContent read_content(format::ByteSource& source, const std::string& path);

/// Does the same for a file that must be an index.
[[nodiscard]] format::ShardIndex read_index(format::ByteSource& source, const std::string& path);

/// An open file, and its content.
struct TensorFile {
    File file;
    std::string path;
    FileContent content;
};

/// Throws as read_content() and FileSystem::open().
[[nodiscard]] TensorFile open_tensor_file(Engine& engine, const FileSystem& files,
                                          const std::string& path);

}  // namespace penstock::state
