// SPDX-License-Identifier: Apache-2.0
// A model whose files are in several folders on several devices: spread shards, copies, or copies
// of some shards. Files that several folders have are read from all of them concurrently.
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
    /// For each of `table.files`: its path in each folder; empty if the folder does not have it.
    std::vector<std::vector<std::string>> copies;
};

/// Finds `model.safetensors.index.json`, else the only index, else the only `.safetensors` of the
/// folders, and each shard in all folders that have it. Reads headers and no tensor. A single name
/// may also be that of a file or an index. Throws Error: kInvalidArgument if nothing is found, if a
/// shard is in no folder, and, with both names, if copies differ in their size or header; otherwise
/// as inspect(). Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API WeightFolders
inspect_folders(const std::shared_ptr<Engine>& engine, const std::vector<std::string>& folders,
                const FileSystem& files = FileSystem::local());

/// The local cache of Hugging Face: HF_HUB_CACHE; else `hub` in HF_HOME; else `huggingface/hub` in
/// XDG_CACHE_HOME or ~/.cache. It need not exist. Thread-safe.
[[nodiscard]] PENSTOCK_API std::string hub_cache_folder();

/// The folder of a model in hub_cache_folder() by its name, "organization/name" or "name": the
/// snapshot that is `main`. Empty if it is not there; nothing is downloaded. Throws the errors of
/// the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API std::string find_hub_model(
    Engine& engine, const std::string& name, const FileSystem& files = FileSystem::local());

}  // namespace penstock
