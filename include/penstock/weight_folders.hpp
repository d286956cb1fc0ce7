// SPDX-License-Identifier: Apache-2.0
// A model whose files lie in several folders, one a device: shards spread over them, copies of all,
// or copies of some. What several folders have is read from all of them at once.
//
//     const penstock::WeightFolders model =
//         penstock::inspect_folders(engine, {"/nvme0/model", "/nvme1/model"});
//     penstock::WeightStream weights(engine, model.table, penstock::find_weight_units(model.table),
//                                    {.memory_bytes = 8ull << 30, .copies = model.copies});
#pragma once

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/tensor_table.hpp>

#include <memory>
#include <string>
#include <vector>

namespace penstock {

/// The tensors of a model, and the copies of its files.
struct WeightFolders {
    TensorTable table;  ///< of the first copy of each file
    /// Of each of `table.files`: its path in each folder; empty where the folder does not have it.
    std::vector<std::vector<std::string>> copies;
};

/// Finds `model.safetensors.index.json`, else the only index, else the only `.safetensors` of the
/// folders, and each shard in all folders that have it; reads headers and no tensor. A single name
/// may be that of a file or an index, too. Throws Error: kInvalidArgument where there is nothing to
/// find, a shard is in no folder, or copies differ in their size or header, with both names;
/// otherwise as inspect(). Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API WeightFolders
inspect_folders(const std::shared_ptr<Engine>& engine, const std::vector<std::string>& folders,
                const FileSystem& files = FileSystem::local());

}  // namespace penstock
