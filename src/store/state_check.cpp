// SPDX-License-Identifier: Apache-2.0
#include "store/state_check.hpp"

#include "base/host_memory.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/json.hpp"
#include "state/structure.hpp"
#include "store/stock_index.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_map>

namespace penstock::store {

namespace {

namespace safetensors = format::safetensors;

[[noreturn]] void refuse(const StateTensor& tensor, std::string_view why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint",
                            fmt::format("tensor {}: {}", format::shown(tensor.name), why)));
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
    if (tensor.data.kind != MemoryKind::kHost) {
        base::raise(base::not_host_memory(
            "save checkpoint", fmt::format("tensor {}", format::shown(tensor.name)), tensor.data));
    }
    const auto type = safetensors::type_named(tensor.dtype);
    if (!type) {
        refuse(tensor,
               fmt::format("safetensors has no type {}; convert it, or save its bytes as U8",
                           format::shown(tensor.dtype)));
    }
    if (tensor.shape.size() > safetensors::kRankMax) {
        refuse(tensor, fmt::format("it has {} dimensions; {} are the most", tensor.shape.size(),
                                   safetensors::kRankMax));
    }
    const auto bytes = safetensors::bytes_of(*type, tensor.shape);
    if (!bytes || *bytes != tensor.data.bytes) {
        refuse(tensor, fmt::format("[{}] of {} is {} bytes, and {} were given",
                                   fmt::join(tensor.shape, ", "), tensor.dtype,
                                   bytes ? fmt::to_string(*bytes) : "no whole number of",
                                   tensor.data.bytes));
    }
    if (tensor.global_shape.empty() && !tensor.global_offset.empty()) {
        refuse(tensor, "it has a global_offset without a global_shape");
    }
    if (!tensor.global_shape.empty()) {
        check_box(tensor, *type);
    }
    return *type;
}

// Checks that load() can make a state of it. If the structure was made here, that was compared too.
void check_structure(const State& state) {
    const std::string& text = state.structure;
    if (text == "null" || stream::content_hash(std::as_bytes(
                              std::span(text.data(), text.size()))) == state.structure_sum) {
        return;
    }
    std::vector<state::StoredTensor> tensors;
    for (const StateTensor& t : state.tensors) {
        const auto& shape = global_shape(t);
        tensors.push_back({t.name, t.dtype, shape,
                           *safetensors::bytes_of(*safetensors::type_named(t.dtype), shape)});
    }
    if (const std::string wrong = state::wrong_structure(text, tensors); !wrong.empty()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint", wrong));
    }
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
        out.push_back(
            {.name = is_slice(tensor) ? slice_name(tensor.name, tensor.global_offset) : tensor.name,
             .type = type,
             .shape = tensor.shape});
    }
    check_structure(state);
    return out;
}

}  // namespace penstock::store
