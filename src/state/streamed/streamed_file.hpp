// SPDX-License-Identifier: Apache-2.0
// One file of tensors that come one after another.
//
//   appended   a `.pt` whose tensors nobody knows before: storages in the order in which they come,
//              then the pickle and the directory. A CRC is set in a local header when the storage
//              behind it has been copied
//   placed     a file whose layout is known (a `.safetensors`, a `.pt` with a structure): each
//              tensor goes to its place, in any order, and what holds sums comes last
//
// Both are written through one StagedWriter into a Replacement, so the old file stays until all is
// written.
#pragma once

#include "state/streamed/arrivals.hpp"
#include "state/writing/file_image.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/state_file.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace penstock::state {

/// A `.pt` with a dict of the tensors by name.
void save_appended(Engine& engine, const FileSystem& files, const std::string& path,
                   Arrivals& arrivals, const SaveFileOptions& options);

/// `payload_of`: of each tensor of TensorStream::like, its payload in the image, or kNoPayload: the
/// file has no place for it. The image's payloads have sizes and no memory. Throws ENOSPC before
/// the first byte.
inline constexpr std::size_t kNoPayload = SIZE_MAX;
void save_placed(Engine& engine, const FileSystem& files, const std::string& path, FileImage& image,
                 const std::vector<std::size_t>& payload_of, Arrivals& arrivals,
                 const SaveFileOptions& options);

/// Writes literals and zeros of a range of the file, which has no payloads.
void write_texts(stream::StagedWriter& writer, const format::FileLayout& file,
                 format::FileRange range);

/// A memory pool for the windows of a StagedWriter.
[[nodiscard]] MemoryPool window_pool();

/// ENOSPC of a save whose size nobody knew before; any other exception is thrown again. Called
/// while it is handled.
[[noreturn]] void rethrow_full(const std::string& path);

}  // namespace penstock::state
