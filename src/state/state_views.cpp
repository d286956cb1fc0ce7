// SPDX-License-Identifier: Apache-2.0
#include "state/state_views.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "format/rebuilt.hpp"
#include "format/safetensors.hpp"
#include "format/torch_types.hpp"
#include "state/structure/structure_tags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>

namespace penstock::state {

namespace {

using format::TensorValue;
using format::Value;
using format::ValueId;
using format::ValueKind;

class Walk {
public:
    explicit Walk(const format::ValueTree& tree) : tree_(tree), seen_(tree.values.size(), false) {}

    std::vector<StateView> run() {
        visit(tree_.root, 0);
        return std::move(out_);
    }

private:
    void visit(ValueId id, int depth) {
        const Value& v = tree_.at(id);
        if (v.kind == ValueKind::kTensor) {
            out_.push_back({name_, static_cast<std::uint32_t>(v.integer)});
            return;
        }
        const bool dict = format::is_dict(v.kind);
        const format::RebuiltRow* made =
            v.kind == ValueKind::kRebuilt ? format::rebuilt_tagged(v.text) : nullptr;
        const bool row =
            v.kind == ValueKind::kList || v.kind == ValueKind::kTuple || made != nullptr;
        if (!(dict || row) || seen_[id] || depth > format::kNestingMax) {
            return;
        }
        seen_[id] = true;
        const std::size_t step = dict ? 2 : 1;
        for (std::size_t i = 0; i + step <= v.items.size(); i += step) {
            const std::size_t length = name_.size();
            if (length <= kTensorNameBytesMax) {
                name_ += depth == 0 ? "" : ".";
                name_ += dict              ? key_text(tree_.at(v.items[i]))
                         : made != nullptr ? std::string(made->parts[i].name)
                                           : fmt::to_string(i);
            }
            visit(v.items[i + step - 1], depth + 1);
            name_.resize(length);
        }
    }

    const format::ValueTree& tree_;
    std::vector<bool> seen_;
    std::string name_;
    std::vector<StateView> out_;
};

std::uint64_t element_bytes(const TensorValue& tensor) {
    return format::torch_type(tensor.type)->torch_bytes();
}

bool is_empty(const TensorValue& tensor) {
    return std::find(tensor.shape.begin(), tensor.shape.end(), 0U) != tensor.shape.end();
}

// Nothing if the number of elements overflows: a stride of 0 repeats them without memory.
std::optional<std::uint64_t> checked_bytes(const TensorValue& tensor) {
    if (is_empty(tensor)) {
        return 0;
    }
    std::optional<std::uint64_t> bytes = element_bytes(tensor);
    for (const std::uint64_t extent : tensor.shape) {
        bytes = bytes ? base::checked_multiply(*bytes, extent) : bytes;
    }
    return bytes;
}

// Calls `copy(element, place)` with the offset of each element in memory, and that in the order of
// rows, in bytes.
template <std::size_t kBytes, typename Copy>
void walk(const TensorValue& t, std::uint64_t count, const Copy& copy) {
    const std::size_t rank = t.shape.size();
    const std::uint64_t row = rank == 0 ? 1 : t.shape.back();
    const std::uint64_t step = rank == 0 ? 0 : t.strides.back() * kBytes;
    std::vector<std::uint64_t> at(rank, 0);  // one per dimension but the last
    std::uint64_t place = 0;
    for (std::uint64_t done = 0; done < count; done += row) {
        std::uint64_t element = t.offset * kBytes;
        for (std::size_t d = 0; d + 1 < rank; ++d) {
            element += at[d] * t.strides[d] * kBytes;
        }
        for (std::uint64_t i = 0; i < row; ++i, place += kBytes) {
            copy(element + i * step, place);
        }
        for (std::size_t d = rank; d-- > 1 && ++at[d - 1] == t.shape[d - 1];) {
            at[d - 1] = 0;
        }
    }
}

// Calls `work` with the bytes of an element as a constant.
template <typename Work>
void with_element_bytes(std::uint64_t bytes, const Work& work) {
    switch (bytes) {
        case 1:
            return work(std::integral_constant<std::size_t, 1>());
        case 2:
            return work(std::integral_constant<std::size_t, 2>());
        case 4:
            return work(std::integral_constant<std::size_t, 4>());
        case 8:
            return work(std::integral_constant<std::size_t, 8>());
        default:
            PENSTOCK_ASSERT(bytes == 16);
            return work(std::integral_constant<std::size_t, 16>());
    }
}

}  // namespace

std::string key_text(const Value& key) {
    switch (key.kind) {
        case ValueKind::kString:
            return key.text.substr(0, kTensorNameBytesMax);
        case ValueKind::kInt:
            return fmt::to_string(key.integer);
        case ValueKind::kBool:
            return key.flag ? "True" : "False";
        case ValueKind::kNone:
            return "None";
        case ValueKind::kFloat:
            return fmt::format("{}", key.real);
        default:
            return "(...)";
    }
}

std::vector<StateView> views_of(const format::ValueTree& tree) {
    return Walk(tree).run();
}

std::uint64_t view_bytes(const TensorValue& tensor) {
    return checked_bytes(tensor).value_or(UINT64_MAX);
}

bool is_plain(const TensorValue& tensor) {
    if (tensor.conjugated || tensor.negated) {
        return false;
    }
    const auto packed = packed_strides(tensor.shape);
    for (std::size_t d = 0; d < tensor.shape.size() && !is_empty(tensor); ++d) {
        if (tensor.shape[d] != 1 && tensor.strides[d] != packed[d]) {
            return false;
        }
    }
    return true;
}

std::string why_not_gathered(const TensorValue& tensor, std::uint64_t storage_bytes) {
    if (tensor.conjugated || tensor.negated) {
        return tensor.conjugated ? "is a conjugated view" : "is a negated view";
    }
    if (format::safetensors::name_of(tensor.type).empty() ||
        tensor.type == tensor::ElementType::kF4E2M1) {
        return fmt::format("is a view of {}", format::torch_type(tensor.type)->torch);
    }
    const auto bytes = checked_bytes(tensor);
    return bytes && *bytes <= storage_bytes
               ? std::string()
               : "is a view that repeats elements, and has more of them than memory behind it";
}

void gather(const TensorValue& tensor, std::span<const std::byte> storage,
            std::span<std::byte> into) {
    PENSTOCK_ASSERT(format::fits(tensor, storage.size()) && into.size() == view_bytes(tensor));
    if (into.empty()) {
        return;
    }
    with_element_bytes(element_bytes(tensor), [&](auto bytes) {
        walk<bytes()>(tensor, into.size() / bytes(), [&](std::uint64_t element, std::uint64_t at) {
            std::memcpy(into.data() + at, storage.data() + element, bytes());
        });
    });
}

void scatter(const TensorValue& tensor, std::span<const std::byte> from,
             std::span<std::byte> storage) {
    PENSTOCK_ASSERT(format::fits(tensor, storage.size()) && from.size() == view_bytes(tensor));
    if (from.empty()) {
        return;
    }
    with_element_bytes(element_bytes(tensor), [&](auto bytes) {
        walk<bytes()>(tensor, from.size() / bytes(), [&](std::uint64_t element, std::uint64_t at) {
            std::memcpy(storage.data() + element, from.data() + at, bytes());
        });
    });
}

}  // namespace penstock::state
