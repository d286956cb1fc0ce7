// SPDX-License-Identifier: Apache-2.0
// Any text as the structure of a state with a few tensors: an error, or a tree that is written and
// comes back the same.
#include "state/structure/structure.hpp"

#include <penstock/error.hpp>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    using namespace penstock::state;  // NOLINT(google-build-using-namespace)
    static const std::vector<penstock::CheckpointTensor> tensors{{"w", "F32", {4, 4}, 64, 1},
                                                                 {"b", "BF16", {3}, 6, 1},
                                                                 {"w.storage", "U8", {64}, 64, 1},
                                                                 {"e", "I64", {0}, 0, 1},
                                                                 {"h", "F4", {2, 4}, 4, 1}};
    static const std::vector<std::byte> memory(64);
    Skeleton read;
    try {
        read = skeleton_of({reinterpret_cast<const char*>(data), bytes}, tensors);
    } catch (const penstock::Error& error) {
        if (error.reason() != penstock::ErrorCode::kDamaged &&
            error.reason() != penstock::ErrorCode::kUnsupported) {
            std::abort();
        }
        return 0;
    }
    std::vector<std::span<const std::byte>> storages;
    for (const auto& storage : read.tree.storages) {
        storages.push_back(std::span(memory).first(storage.bytes));
    }
    penstock::State state;
    try {
        state = state_of(read.tree, storages);
    } catch (const penstock::Error&) {
        return 0;  // strings that add up past the limit
    }
    std::vector<penstock::CheckpointTensor> saved;
    for (const auto& t : state.tensors) {
        saved.push_back({t.name, t.dtype, t.shape, t.data.size(), 1});
    }
    const Skeleton again = skeleton_of(state.structure, saved);
    const penstock::State twice = state_of(again.tree, [&] {
        std::vector<std::span<const std::byte>> spans;
        for (const auto& storage : again.tree.storages) {
            spans.push_back(std::span(memory).first(storage.bytes));
        }
        return spans;
    }());
    if (twice.structure != state.structure) {
        std::abort();
    }
    return 0;
}
