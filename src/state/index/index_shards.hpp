// SPDX-License-Identifier: Apache-2.0
// The shards of an index, opened so that all of them are of one save.
//
// The names of the shards are free once the index is replaced, and the next save may take them: a
// name alone does not identify the save of a file. While an index exists its shards do, and no
// other save has their names. So a reader that has opened all of them checks that the index is
// still the same one, and starts again if it is not. Open files stay those of one save.
//
// A shard may also be a file of torch.save (pytorch_model-00001-of-00002.bin): its plain tensors
// are read where they lie, as those of a .safetensors.
#pragma once

#include "state/tensor_file.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace penstock::state {

struct IndexShards {
    struct Tensor {
        std::uint32_t shard = 0;
        std::size_t place = 0;  ///< in the header of the shard
        std::uint32_t crc = 0;  ///< of a shard of torch.save; 0: none
    };
    TensorFile index;
    FileStatus status;  ///< of the index, before it was read
    /// Those that have a tensor of `tensors`. Each is open, or none where they are `too_many`.
    std::vector<TensorFile> shards;
    std::vector<Tensor> tensors;
    bool too_many = false;
};

/// The numbers of those that are wanted, of the names that there are. May throw.
using Choose = std::function<std::vector<std::size_t>(std::span<const std::string_view> names)>;

/// `index`: its content is a ShardIndex. `tensors` are in the order that `choose` gives; without
/// it, in that of the index. `hold_all`: the shards stay open, however many they are; else none of
/// them where the process may not open that many files. Throws Error: kDamaged where the index does
/// not stay the same long enough.
[[nodiscard]] IndexShards open_index(Engine& engine, const FileSystem& files, TensorFile index,
                                     const Choose& choose, bool hold_all);

/// Whether the index is still the one that was read, so that the names of its shards are theirs.
[[nodiscard]] bool is_still(Engine& engine, const FileSystem& files, const IndexShards& shards);

}  // namespace penstock::state
