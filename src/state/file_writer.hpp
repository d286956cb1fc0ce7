// SPDX-License-Identifier: Apache-2.0
// Writes a FileImage at the speed of the device, its checksums behind the writing.
//
//   room      the whole file is preallocated: a full disk is told before the first byte
//   ranges    the file is cut at blocks of the device. Ranges inside large payloads need no sums
//             and go first; those with headers follow, in the order of the file, as their sums
//             become known, which the other cores see to meanwhile
//   window    some transfers of some MiB each are with the engine, so that depth is kept from one
//             to the next and nothing but the caller's own memory is held
#pragma once

#include "state/file_image.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/progress.hpp>

#include <string>

namespace penstock::state {

/// Writes all of it to `file`, which is new and empty; syncing it is the caller's. Throws Error;
/// what is in the file then is undefined, and nothing of it is under way any more.
void write_image(Engine& engine, const FileSystem& files, File& file, FileImage& image,
                 const Progress& progress = {});

/// Puts it under `path`, whole, durable and atomic (replace.hpp). Where it throws, what was there
/// before is there still. Any thread; the engine and the file system are shared, the image is not.
void save_file(Engine& engine, const FileSystem& files, const std::string& path, FileImage& image,
               const Progress& progress = {});

/// Gives an empty file room for `bytes`. Where there is not enough it throws ENOSPC with the number
/// of bytes that are missing; file systems that cannot preallocate are asked for their free room.
void make_room(const FileSystem& files, File& file, std::uint64_t bytes);

}  // namespace penstock::state
