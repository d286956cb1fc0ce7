// SPDX-License-Identifier: Apache-2.0
// Shards never change once they are there, but other programs have hands. A shard's time of
// modification is that of its save, with a part of a second that follows from its id: so whoever
// wants to link it sees, without reading it, that it was written to since. (What rots on the disk
// does not show there; only reading finds it.)
#pragma once

#include "store/manifest.hpp"

#include <penstock/file.hpp>

#include <cstdint>

namespace penstock::store {

/// Less than a second before `saved_unix_ns`, which is past the first second.
[[nodiscard]] std::int64_t time_of(const Shard& shard, std::int64_t saved_unix_ns);
/// `saved_unix_ns`: of the last checkpoint that has the shard. Where the file system, or whatever
/// copied the store, keeps whole seconds, a time is its own that is no later than that: an edit in
/// the very second of the save does not show there.
[[nodiscard]] bool has_its_time(const Shard& shard, const FileStatus& status,
                                std::int64_t saved_unix_ns);

}  // namespace penstock::store
