// SPDX-License-Identifier: Apache-2.0
// Single files in the background: FileSaver is of states, this of images, for callers that make
// those themselves.
#pragma once

#include "state/writing/file_image.hpp"
#include "store/background/background_saver.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <memory>
#include <string>

namespace penstock::store {

/// `save` has the payloads' memory, and is not complete: its name and its work are of the file.
[[nodiscard]] penstock::PendingSave save_image_async(BackgroundSaver& saver,
                                                     std::shared_ptr<Engine> engine,
                                                     FileSystem files, const std::string& path,
                                                     state::FileImage image, AsyncSave save,
                                                     const AsyncOptions& options);

}  // namespace penstock::store
