// SPDX-License-Identifier: Apache-2.0
#include "state/index_shards.hpp"
#include "state/safetensors_source.hpp"

#include <utility>

namespace penstock::state {

std::unique_ptr<FileSource> index_source(const std::shared_ptr<Engine>& engine,
                                         const FileSystem& files, TensorFile index) {
    IndexShards found = open_index(*engine, files, std::move(index), {}, true);
    auto source = std::make_unique<SafetensorsSource>(engine);
    source->set_kind(TableKind::kIndex, found.index.path);
    for (TensorFile& shard : found.shards) {
        source->add_file(std::move(shard));
    }
    for (const IndexShards::Tensor& tensor : found.tensors) {
        source->add_tensor(tensor.shard, tensor.place);
    }
    return source;
}

}  // namespace penstock::state
