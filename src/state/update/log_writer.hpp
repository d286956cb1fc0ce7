// SPDX-License-Identifier: Apache-2.0
// Makes the log of an update of one file:
//
//   1. the tensors go to a file with a temporary name, and are summed in memory
//   2. what is in that file now is read back: it must have those sums, and the new checksums of the
//      file are made from it
//   3. the head: patches, witnesses and the sum of the structure, from the file as it is
//
// The caller commits it. Nothing of the file itself is written.
#pragma once

#include "state/update/find_update.hpp"
#include "state/update/update_log.hpp"
#include "state/update/update_plan.hpp"
#include "state/writing/replace.hpp"
#include "stream/progress_clock.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock::state {

/// Shared by the logs of one call.
struct UpdateGroup {
    std::uint64_t id = 0;
    std::string leader;  ///< as in UpdateLog
    std::vector<std::string> followers;
};

/// `path`, `file`: those of the file. The result is complete, and has no name yet. Throws Error:
/// kChanged for a tensor that changes meanwhile.
[[nodiscard]] std::unique_ptr<Replacement> write_update_log(
    Engine& engine, const FileSystem& files, const std::string& path, const File& file,
    const PlannedFile& plan, const UpdateGroup& group, stream::ProgressClock& progress);

/// The same for the log that makes those of the group valid, which gets this path. Who may read the
/// file `like` may read it.
[[nodiscard]] std::unique_ptr<Replacement> write_leader(Engine& engine, const FileSystem& files,
                                                        const std::string& path,
                                                        const std::string& like,
                                                        const UpdateGroup& group);

/// Throws kDamaged for a log whose new bytes do not have their checksums.
void check_update(Engine& engine, const OpenUpdate& update);

/// Writes what a log has into its file, and syncs that. Throws kChanged, before it writes a byte,
/// for a file that was written to since it had the status `before`.
void redo_update(Engine& engine, const OpenUpdate& update, File& file, const FileStatus& before);

}  // namespace penstock::state
