// SPDX-License-Identifier: Apache-2.0
// Whether a folder is a checkpoint of a CheckpointStore, which alone writes and removes there. The
// store itself is above this room; its manifest begins in one way.
#pragma once

#include <penstock/file.hpp>

#include <string>

namespace penstock::state {

/// By the first bytes of its manifest.json, or by its name and the files of a store above it: in
/// further folders of a store there is no manifest, and a manifest may be damaged. False for a
/// folder that may not be looked at.
[[nodiscard]] bool is_checkpoint_folder(const FileSystem& files, const std::string& folder);

}  // namespace penstock::state
