// SPDX-License-Identifier: Apache-2.0
#include "format/grammar.hpp"

#include "base/align.hpp"
#include "format/numpy/numpy_types.hpp"
#include "format/rebuilt.hpp"
#include "format/torch_types.hpp"
#include "format/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::format {

namespace {

// Counts the elements of a key, until there are too many; -1 if something in it has no hash. The
// object of a pickle was a key when it was saved, so it has one.
int key_elements(const ValueTree& tree, ValueId id, int room) {
    const Value& value = tree.at(id);
    switch (value.kind) {
        case ValueKind::kNone:
        case ValueKind::kBool:
        case ValueKind::kInt:
        case ValueKind::kBigInt:
        case ValueKind::kFloat:
        case ValueKind::kComplex:
        case ValueKind::kString:
        case ValueKind::kBytes:
        case ValueKind::kDtype:
        case ValueKind::kDevice:
        case ValueKind::kNumpyScalar:
        case ValueKind::kPickled:
            return 1;
        case ValueKind::kTuple:
        case ValueKind::kSize: {
            int total = 1;
            for (const ValueId item : value.items) {
                const int more = total <= room ? key_elements(tree, item, room - total) : room;
                if (more < 0 || total + more > room) {
                    return -1;
                }
                total += more;
            }
            return total;
        }
        default:
            return -1;
    }
}

constexpr std::string_view kBadKey =
    "it has a key that is not a string, a number, or a short tuple of such";

std::string wrong_items(const ValueTree& tree, const Value& v) {
    const Holds holds = row_of(v.kind).holds;
    const std::size_t step = holds == Holds::kEntries ? 2 : 1;
    if (v.items.size() % step != 0) {
        return "it has a key without a value";
    }
    if (holds == Holds::kKeys || holds == Holds::kEntries) {
        for (std::size_t i = 0; i < v.items.size(); i += step) {
            if (!may_be_key(tree, v.items[i])) {
                return std::string(kBadKey);
            }
        }
    }
    if (holds == Holds::kIntegers) {
        for (const ValueId item : v.items) {
            if (tree.at(item).kind != ValueKind::kInt) {
                return "it has an extent that is not an integer of 64 bits";
            }
        }
    }
    return holds == Holds::kNothing && !v.items.empty() ? "it has items" : "";
}

std::string wrong_attributes(const ValueTree& tree, const Value& v) {
    if (v.attributes == kNoValue) {
        return {};
    }
    const Value& own = tree.at(v.attributes);
    const bool torch = v.kind == ValueKind::kTensor || v.kind == ValueKind::kRebuilt;
    if ((v.kind != ValueKind::kOrderedDict && !torch) || own.kind != ValueKind::kDict) {
        return "it has attributes, which only an OrderedDict or a tensor may have, and in a dict";
    }
    for (std::size_t i = 0; i < own.items.size(); i += 2) {
        if (tree.at(own.items[i]).kind != ValueKind::kString) {
            return "it has an attribute whose name is not a string";
        }
        if (torch && tree.at(own.items[i]).text.starts_with("__")) {
            return "the tensor has an attribute of Python's own: " +
                   shown(tree.at(own.items[i]).text);
        }
    }
    return {};
}

std::string wrong_numpy(const ValueTree& tree, const Value& v) {
    auto bytes = numpy_item_bytes(v.text);
    if (v.items.size() > kTensorRankMax) {
        return fmt::format("it has {} dimensions; {} are the most", v.items.size(), kTensorRankMax);
    }
    for (const ValueId item : v.items) {
        const std::int64_t extent = tree.at(item).integer;
        if (extent < 0) {
            return "it has a negative extent";
        }
        bytes = bytes ? base::checked_multiply(*bytes, static_cast<std::uint64_t>(extent)) : bytes;
    }
    if (!bytes || *bytes != v.data.size()) {
        return fmt::format("NumPy's {} of its shape does not have {} bytes, or is not read",
                           shown(v.text), v.data.size());
    }
    return {};
}

// Ranks rise, so each is there once.
std::string wrong_per_rank(const ValueTree& tree, const Value& v) {
    std::int64_t last = -1;
    for (std::size_t i = 0; i < v.items.size(); i += 2) {
        const Value& rank = tree.at(v.items[i]);
        if (rank.kind != ValueKind::kInt || rank.integer <= last || rank.integer > UINT32_MAX) {
            return "it has a value for each rank, and these are no numbers of ranks, in order";
        }
        last = rank.integer;
    }
    return v.items.empty() ? "it has a value for each rank, and none is there" : "";
}

std::string wrong_tensor(const ValueTree& tree, const Value& v) {
    if (static_cast<std::uint64_t>(v.integer) >= tree.tensors.size()) {
        return "it names a tensor that is not there";
    }
    const TensorValue& t = tree.tensors[static_cast<std::size_t>(v.integer)];
    return t.storage < tree.storages.size() && fits(t, tree.storages[t.storage].bytes)
               ? std::string()
               : "it is a tensor that does not lie in its storage, or of a type that torch does "
                 "not have";
}

}  // namespace

const Factory* factory_named(std::string_view name) {
    const auto* const found = std::find_if(kFactories.begin(), kFactories.end(),
                                           [name](const Factory& f) { return f.name == name; });
    return found == kFactories.end() ? nullptr : found;
}

bool may_be_key(const ValueTree& tree, ValueId id) {
    return key_elements(tree, id, kKeyElementsMax) >= 0;
}

std::string wrong_with(const ValueTree& tree, const Value& v) {
    if (!is_of_state(v.kind)) {
        return v.kind == ValueKind::kStorage
                   ? "a bare storage is not read; save a tensor of it"
                   : fmt::format("{} itself is not a value that a state can hold", shown(v.text));
    }
    if (v.attributes != kNoValue || v.kind == ValueKind::kOrderedDict) {
        if (std::string wrong = wrong_attributes(tree, v); !wrong.empty()) {
            return wrong;
        }
    }
    if (!v.items.empty()) {
        if (std::string wrong = wrong_items(tree, v); !wrong.empty()) {
            return wrong;
        }
    }
    switch (v.kind) {
        case ValueKind::kString:
            return is_utf8(v.text) ? std::string() : "it is a string that is not UTF-8";
        case ValueKind::kBigInt:
            return v.text.size() > 8 && v.text.size() <= kBigIntBytesMax
                       ? ""
                       : fmt::format("it is an integer of {} bytes; 9 to {} are saved so",
                                     v.text.size(), kBigIntBytesMax);
        case ValueKind::kDtype:
            return torch_constant(v.text) != Constant::kNone
                       ? ""
                       : shown(v.text) + " is not a dtype, layout or scheme of torch that is read";
        case ValueKind::kDevice:
            return is_device(v.text) ? "" : shown(v.text) + " is not a device";
        case ValueKind::kDefaultDict:
            return v.text.empty() || factory_named(v.text) != nullptr
                       ? ""
                       : "it makes " + shown(v.text) + ", which is not allowed";
        case ValueKind::kTensor:
            return wrong_tensor(tree, v);
        case ValueKind::kRebuilt:
            return wrong_rebuilt(tree, v);
        case ValueKind::kNumpyScalar:
        case ValueKind::kNumpyArray:
            return wrong_numpy(tree, v);
        case ValueKind::kPerRank:
            return wrong_per_rank(tree, v);
        default:
            return {};
    }
}

}  // namespace penstock::format
