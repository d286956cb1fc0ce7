// SPDX-License-Identifier: Apache-2.0
// An index of shards of tensors that come one after another: shards are cut as they come.
//
// A `.safetensors` has its header first and no gaps, and readers want each tensor at a multiple of
// its element. So of each shard:
//
//   small tensors are copied to a block of memory (the hold). A shard that ends while all of its
//         tensors are there is written as any file
//   else  its data begins behind a room for the header, and tensors are written as they come. Those
//         whose size is no multiple of 8 bytes stay in the hold: they are at the end of the shard,
//         the less even the later, so that what is before them is aligned
//   end   the header is written into the room, with spaces behind it
//
// A shard ends where the next tensor would exceed its bytes or the room, and where a tensor that is
// not even is too large for the hold. It stays a temporary file of the index, locked and synced,
// until the number of shards is known; then it gets its name (index_writer.hpp). So what a killed
// save leaves is removed by the next one, as the records of dead saves are.
#pragma once

#include "state/streamed/arrivals.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/state_file.hpp>

#include <string>
#include <utility>
#include <vector>

namespace penstock::state {

void save_streamed_index(Engine& engine, const FileSystem& files, const std::string& path,
                         Arrivals& arrivals,
                         const std::vector<std::pair<std::string, std::string>>& metadata,
                         const SaveFileOptions& options);

}  // namespace penstock::state
