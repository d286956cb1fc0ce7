// SPDX-License-Identifier: Apache-2.0
// A mark against edits of shards by other programs: shards never change once they are written. A
// shard's time of modification is that of its save, with a part of a second that follows from its
// id. So a save that wants to link it sees, without reading it, that it was written to since. (Bit
// rot does not show there; only reading finds it.)
#pragma once

#include "store/manifest/manifest.hpp"

#include <penstock/file.hpp>

#include <cstdint>

namespace penstock::store {

/// Less than a second before `saved_unix_ns`, which is past the first second.
[[nodiscard]] std::int64_t time_of(const Shard& shard, std::int64_t saved_unix_ns);
/// `saved_unix_ns`: of the last checkpoint that has the shard. If the file system, or a program
/// that copied the store, keeps only whole seconds, any time not later than that is accepted: an
/// edit in the very second of the save does not show there.
[[nodiscard]] bool has_its_time(const Shard& shard, const FileStatus& status,
                                std::int64_t saved_unix_ns);

}  // namespace penstock::store
