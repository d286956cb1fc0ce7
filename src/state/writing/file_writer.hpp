// SPDX-License-Identifier: Apache-2.0
// Writes a FileImage at the speed of the device, and makes its checksums concurrently.
//
//   room      the whole file is preallocated: a full disk is reported before the first byte
//   ranges    the file is cut at blocks of the device. Ranges inside large payloads need no sums
//             and go first; those with headers follow, in the order of the file
//   sums      are made by other cores, around the write of each range (image_sums.hpp)
//   window    some transfers of some MiB each are with the engine, so that depth is kept from one
//             to the next and only the caller's own memory is held
#pragma once

#include "state/writing/file_image.hpp"
#include "stream/window_sums.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/types.hpp>

#include <string>

namespace penstock::state {

/// Writes all of it to `file`, which is new and empty; the caller syncs it. Throws Error; the
/// content of the file is then undefined, and no transfer is running any more.
void write_image(Engine& engine, const FileSystem& files, File& file, FileImage& image,
                 const Progress& progress = {}, const stream::Watch& watch = {});

/// Saves it as `path`, whole, atomic and, with `sync`, durable (replace.hpp). If it throws, the old
/// file is still there. Any thread; the engine and the file system are shared, the image is not.
/// `watch`: its look has numbers of payloads.
void save_file(Engine& engine, const FileSystem& files, const std::string& path, FileImage& image,
               const Progress& progress = {}, bool sync = true, const stream::Watch& watch = {});

/// Preallocates `bytes` for an empty file. If there is not enough room it throws ENOSPC with the
/// number of missing bytes; for file systems that cannot preallocate it compares the free space.
void make_room(const FileSystem& files, File& file, std::uint64_t bytes);

}  // namespace penstock::state
