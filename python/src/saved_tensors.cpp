// SPDX-License-Identifier: Apache-2.0
#include "saved_tensors.hpp"

#include <map>

namespace penstock::python {

std::vector<std::size_t> place_tensors(penstock::State& state, const format::ValueTree& tree,
                                       const std::vector<StorageMemory>& storages,
                                       std::span<const SlicedTensor> sliced) {
    std::vector<bool> is_part(storages.size());
    for (const SlicedTensor& one : sliced) {
        is_part[one.storage] = true;
    }
    std::map<const std::byte*, std::size_t> by_begin;
    for (std::size_t i = 0; i < storages.size(); ++i) {
        if (storages[i].bytes != 0 && !is_part[i]) {
            by_begin.emplace(storages[i].data, i);
        }
    }
    std::map<const std::byte*, std::size_t> own;  // bytes of the tree: copies
    for (const format::Value& value : tree.values) {
        if (!value.data.empty()) {
            own.emplace(reinterpret_cast<const std::byte*>(value.data.data()), value.data.size());
        }
    }
    const auto holds = [](const std::byte* begin, std::size_t bytes, const StateTensor& tensor) {
        return tensor.data.data >= begin && tensor.data.data + tensor.data.bytes <= begin + bytes;
    };
    std::vector<std::size_t> out(state.tensors.size(), kNoStorage);
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        StateTensor& tensor = state.tensors[i];
        auto after = by_begin.upper_bound(tensor.data.data);
        if (tensor.data.bytes != 0 && after != by_begin.begin()) {
            const std::size_t number = (--after)->second;
            const StorageMemory& storage = storages[number];
            if (holds(storage.data, storage.bytes, tensor)) {
                out[i] = number;
                tensor.data.kind = storage.where;
                tensor.data.device = storage.device;
                tensor.is_copy = storage.copied;
            }
        }
        auto after_own = own.upper_bound(tensor.data.data);
        if (out[i] == kNoStorage && after_own != own.begin()) {
            --after_own;
            tensor.is_copy = holds(after_own->first, after_own->second, tensor);
        }
    }
    return out;
}

}  // namespace penstock::python
