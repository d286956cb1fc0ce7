// SPDX-License-Identifier: Apache-2.0
#include "store/write/state_check.hpp"

#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/json.hpp"
#include "state/writing/state_image.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_map>

namespace penstock::store {

namespace {

namespace safetensors = format::safetensors;

constexpr const char* kOperation = "save checkpoint";

[[noreturn]] void refuse(const StateTensor& tensor, std::string_view why) {
    state::refuse_tensor(tensor, kOperation, why);
}

void check_box(const StateTensor& tensor, tensor::ElementType type) {
    const auto& global = tensor.global_shape;
    if (tensor.global_offset.size() != global.size() || tensor.shape.size() != global.size()) {
        refuse(tensor,
               "its shape, global_shape and global_offset have different numbers of "
               "dimensions");
    }
    for (std::size_t d = 0; d < global.size(); ++d) {
        if (tensor.global_offset[d] > global[d] ||
            tensor.shape[d] > global[d] - tensor.global_offset[d]) {
            refuse(tensor, fmt::format("its slice [{}, +{}) of dimension {} reaches past the "
                                       "tensor's {}",
                                       tensor.global_offset[d], tensor.shape[d], d, global[d]));
        }
    }
    if (!safetensors::bytes_of(type, global)) {
        refuse(tensor, "its global shape is no whole number of bytes below 2^61");
    }
}

tensor::ElementType check_tensor(const StateTensor& tensor) {
    const tensor::ElementType type = state::check_tensor(tensor, kOperation);
    if (tensor.global_shape.empty() && !tensor.global_offset.empty()) {
        refuse(tensor, "it has a global_offset without a global_shape");
    }
    if (!tensor.global_shape.empty()) {
        check_box(tensor, type);
    }
    return type;
}

// Checks that load() can make a state of it. If the structure was made here, that was compared too.
void check_structure(const State& state) {
    std::vector<state::StoredTensor> tensors;
    for (const StateTensor& t : state.tensors) {
        const auto& shape = global_shape(t);
        tensors.push_back({t.name, t.dtype, shape,
                           *safetensors::bytes_of(*safetensors::type_named(t.dtype), shape)});
    }
    state::check_structure(state, tensors, kOperation);
}

}  // namespace

const std::vector<std::uint64_t>& global_shape(const StateTensor& tensor) {
    return tensor.global_shape.empty() ? tensor.shape : tensor.global_shape;
}

bool is_slice(const StateTensor& tensor) {
    return !tensor.global_shape.empty() && tensor.global_shape != tensor.shape;
}

std::vector<safetensors::Tensor> check_state(const State& state) {
    std::pmr::monotonic_buffer_resource nodes;
    std::pmr::unordered_map<std::string_view, const StateTensor*> names(&nodes);
    names.reserve(state.tensors.size());
    std::vector<safetensors::Tensor> out;
    out.reserve(state.tensors.size());
    for (const StateTensor& tensor : state.tensors) {
        const tensor::ElementType type = check_tensor(tensor);
        const auto [first, is_first] = names.emplace(tensor.name, &tensor);
        const StateTensor& other = *first->second;
        if (!is_first && (!is_slice(tensor) || !is_slice(other))) {
            refuse(tensor,
                   "it comes twice; a name comes once, unless it is several slices of one "
                   "tensor");
        }
        if (!is_first &&
            (other.global_shape != tensor.global_shape || other.dtype != tensor.dtype)) {
            refuse(tensor, "two slices of it disagree on its global shape or type");
        }
        out.push_back({.name = tensor.name, .type = type, .shape = tensor.shape});
    }
    check_structure(state);
    return out;
}

void look_at_all(const State& state, const MemoryLook& look, const std::string& path) {
    if (!look) {
        return;
    }
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        if (!state.tensors[i].is_copy) {
            own.push_back(i);
        }
    }
    const auto gone = own.empty() ? std::nullopt : look(own);
    if (gone) {
        base::raise(base::error(
            ErrorCode::kChanged, "save",
            fmt::format("tensor {}: its memory was freed, resized or changed while it was saved, "
                        "and nothing was saved. Let nothing change the tensors before the save is "
                        "done, or save a copy (save_async() makes one)",
                        format::shown(state.tensors[*gone].name)),
            path));
    }
}

}  // namespace penstock::store
