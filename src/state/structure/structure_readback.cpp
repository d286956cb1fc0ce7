// SPDX-License-Identifier: Apache-2.0
// Reads a written structure again, before it is used.
#include "base/raise.hpp"
#include "format/safetensors.hpp"
#include "format/torch_types.hpp"
#include "format/unread.hpp"
#include "state/structure/structure.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::state {

namespace {

using format::kNoValue;
using format::TensorValue;
using format::ValueId;

[[noreturn]] void refuse(const std::string& why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint", why));
}

// Compares tensors by the address of their elements: only the used part of a storage is saved.
class SameTensors {
public:
    SameTensors(const format::ValueTree& tree, std::span<const std::span<const std::byte>> storages,
                const State& state, const Skeleton& back)
        : tree_(tree),
          storages_(storages),
          state_(state),
          back_(back),
          matched_(tree.storages.size(), kNoValue),
          taken_(back.sources.size(), false) {}

    bool operator()(std::uint32_t a, std::uint32_t b) {
        const TensorValue& v = tree_.tensors[a];
        const TensorValue& w = back_.tree.tensors[b];
        if (matched_[v.storage] == kNoValue && !taken_[w.storage]) {
            matched_[v.storage] = w.storage;
            taken_[w.storage] = true;
        }
        if (matched_[v.storage] != w.storage || !format::same_but_place(v, w) ||
            tree_.storages[v.storage].location != back_.tree.storages[w.storage].location) {
            return false;
        }
        if (std::find(v.shape.begin(), v.shape.end(), 0U) != v.shape.end()) {
            return true;
        }
        const std::uint64_t each = format::torch_type(v.type)->torch_bytes();
        // Storages are written in the order of the tensors.
        return storages_[v.storage].data() + v.offset * each ==
               state_.tensors[w.storage].data.data + w.offset * each;
    }

private:
    const format::ValueTree& tree_;
    std::span<const std::span<const std::byte>> storages_;
    const State& state_;
    const Skeleton& back_;
    std::vector<std::uint32_t> matched_;
    std::vector<bool> taken_;
};

}  // namespace

std::string wrong_structure(std::string_view structure, std::span<const StoredTensor> tensors) {
    if (structure == "null") {
        return {};
    }
    try {
        const Skeleton read = skeleton_of(structure, tensors);
        if (const std::string why = format::why_not_whole(read.tree); !why.empty()) {
            return fmt::format("it has an object that was not read: {}", why);
        }
    } catch (const Error& error) {
        return fmt::format("its structure cannot be read: {}", error.what());
    }
    return {};
}

void check_readback(const format::ValueTree& tree,
                    std::span<const std::span<const std::byte>> storages, const State& state) {
    std::vector<StoredTensor> tensors;
    tensors.reserve(state.tensors.size());
    for (const StateTensor& t : state.tensors) {
        tensors.push_back({t.name, t.dtype, t.shape, t.data.bytes});
    }
    Skeleton back;
    try {
        back = skeleton_of(state.structure, tensors);
    } catch (const Error& error) {
        refuse(fmt::format("the state cannot be read again: {}", error.what()));
    }
    const bool in_order = std::equal(
        back.sources.begin(), back.sources.end(), state.tensors.begin(), state.tensors.end(),
        [](const auto& name, const auto& t) { return name == t.name; });
    if (!in_order) {
        refuse("its tensors would come back under other names");
    }
    const ValueId other =
        format::difference(tree, back.tree, SameTensors(tree, storages, state, back));
    if (other != kNoValue) {
        refuse(format::place_of(tree, other) + ": it would not come back as it is");
    }
}

}  // namespace penstock::state
