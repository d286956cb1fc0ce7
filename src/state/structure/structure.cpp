// SPDX-License-Identifier: Apache-2.0
// Converts a tree of values to named tensors and a JSON text:
// {"penstock_structure":1,"values":[..], "tensors":[..],"storages":[..]}. Value 0 is the state
// itself. One walk numbers the values in the order of visits, names the tensors and finds values
// that cannot be saved, while the path is known; then the form of each storage is chosen, and the
// text is written.
#include "state/structure/structure.hpp"

#include "base/assert.hpp"
#include "base/raise.hpp"
#include "format/rebuilt.hpp"
#include "format/safetensors.hpp"
#include "format/torch_types.hpp"
#include "state/structure/per_rank.hpp"
#include "state/structure/structure_pen.hpp"
#include "state/structure/structure_tags.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory_resource>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace penstock::state {

namespace {

using format::kNoValue;
using format::TensorValue;
using format::Value;
using format::ValueId;
using format::ValueKind;

constexpr std::size_t kValueBytesGuess = 24;  // of the text; it may be wrong

// Cuts after a whole character.
std::string_view cut(std::string_view name) {
    std::size_t bytes = std::min(name.size(), kTensorNameBytesMax);
    while (bytes < name.size() && (static_cast<unsigned char>(name[bytes]) & 0xC0U) == 0x80) {
        --bytes;
    }
    return name.substr(0, bytes);
}

class Names {
public:
    std::string unique(std::string_view wish) {
        std::string name(cut(wish));
        if (name.empty()) {
            name = "tensor";
        }
        if (name != "__metadata__" && taken_.insert(name).second) {  // reserved by safetensors
            return name;
        }
        std::uint64_t& last = last_[name];
        while (true) {
            last = std::max<std::uint64_t>(last, 1) + 1;
            std::string next = fmt::format("{}~{}", name, last);
            if (taken_.insert(next).second) {
                return next;
            }
        }
    }

private:
    std::pmr::monotonic_buffer_resource nodes_;
    std::pmr::unordered_set<std::string> taken_{&nodes_};
    std::unordered_map<std::string, std::uint64_t> last_;
};

class Writer {
public:
    Writer(const format::ValueTree& tree, std::span<const std::span<const std::byte>> storages)
        : tree_(tree),
          data_(storages),
          numbers_(tree.values.size(), kNoValue),
          tensor_numbers_(tree.tensors.size(), kNoValue),
          looks_(tree.storages.size()) {
        PENSTOCK_ASSERT(storages.size() == tree.storages.size());
    }

    State run() {
        if (!visit(tree_.root, 0)) {
            base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint",
                                    fmt::format("{}: {}", path_.text(tree_), wrong_)));
        }
        state_.tensors.reserve(storage_order_.size());
        storages_text_ = kStoragesBegin;
        for (const std::uint32_t storage : storage_order_) {
            place(storage);
        }
        write();
        return std::move(state_);
    }

private:
    // ---- the walk ----

    bool refuse(std::string why) {
        wrong_ = std::move(why);
        return false;
    }

    bool visit(ValueId id, int depth) {
        PENSTOCK_ASSERT(id < tree_.values.size());
        if (numbers_[id] != kNoValue) {
            return true;
        }
        const Value& v = tree_.at(id);
        numbers_[id] = static_cast<ValueId>(order_.size());
        order_.push_back(id);
        if (depth > format::kNestingMax) {
            return refuse(fmt::format("it is nested deeper than {} levels", format::kNestingMax));
        }
        data_bytes_ += v.text.size() + v.data.size();
        if (order_.size() > kStructureValuesMax || data_bytes_ > kStructureDataMax) {
            return refuse(fmt::format(
                "up to here the state has {} values and {} bytes besides its tensors, and a "
                "checkpoint holds {} and {}; make a tensor of what is large",
                order_.size(), data_bytes_, kStructureValuesMax, kStructureDataMax));
        }
        if (std::string wrong = format::wrong_with(tree_, v); !wrong.empty()) {
            return refuse(std::move(wrong));
        }
        return (format::is_dict(v.kind) ? entries(v, depth) : items(v, depth)) &&
               attributes(v, depth) && (v.kind != ValueKind::kTensor || tensor(v));
    }

    // Visits an item; the path leads to its place already. On success the path and the name are
    // unchanged afterwards.
    bool below(ValueId id, int depth, std::string_view name) {
        const std::size_t name_length = name_.size();
        if (name_.size() <= kTensorNameBytesMax) {  // longer names are cut anyway
            name_ += name_.empty() ? "" : ".";
            name_ += name;
        }
        if (!visit(id, depth + 1)) {
            return false;
        }
        path_.leave();
        name_.resize(name_length);
        return true;
    }

    bool entries(const Value& v, int depth) {
        for (std::size_t i = 0; i + 1 < v.items.size(); i += 2) {
            const Value& k = tree_.at(v.items[i]);
            path_.enter_key(v.items[i]);
            if (!visit(v.items[i], depth + 1)) {
                return false;
            }
            const std::string made = k.kind == ValueKind::kString ? std::string()
                                     : k.kind == ValueKind::kInt  ? fmt::to_string(k.integer)
                                                                  : fmt::format("key{}", i / 2);
            const std::string_view name = k.kind == ValueKind::kString ? k.text : made;
            if (!below(v.items[i + 1], depth, name)) {
                return false;
            }
        }
        return true;
    }

    bool items(const Value& v, int depth) {
        const format::RebuiltRow* made =
            v.kind == ValueKind::kRebuilt ? format::rebuilt_tagged(v.text) : nullptr;
        for (std::size_t i = 0; i < v.items.size(); ++i) {
            path_.enter_index(i);
            const fmt::format_int number(i);
            if (!below(v.items[i], depth,
                       made != nullptr ? made->parts[i].name : std::string_view(number.c_str()))) {
                return false;
            }
        }
        return true;
    }

    bool attributes(const Value& v, int depth) {
        if (v.attributes == kNoValue) {
            return true;
        }
        path_.enter_attributes();
        return below(v.attributes, depth, "__dict__");
    }

    bool tensor(const Value& v) {
        const auto index = static_cast<std::uint32_t>(v.integer);
        PENSTOCK_ASSERT(index < tree_.tensors.size());
        if (tensor_numbers_[index] != kNoValue) {
            return true;
        }
        const TensorValue& t = tree_.tensors[index];
        PENSTOCK_ASSERT(data_[t.storage].size() == tree_.storages[t.storage].bytes);
        tensor_numbers_[index] = static_cast<std::uint32_t>(tensor_order_.size());
        tensor_order_.push_back(index);
        Look& look = looks_[t.storage];
        if (look.tensor == kNoValue) {
            look.tensor = index;
            look.number = static_cast<std::uint32_t>(storage_order_.size());
            look.name = name_;
            storage_order_.push_back(t.storage);
        } else {
            look.others.emplace_back(index, name_);
        }
        return true;
    }

    // ---- storages ----

    // The tensors that use a storage (mostly one), and its form.
    struct Look {
        std::uint32_t tensor = kNoValue;  // the first
        std::string name;                 // its name; then that of the saved tensor
        std::vector<std::pair<std::uint32_t, std::string>> others;
        std::uint32_t number = 0;
        std::optional<std::uint32_t> stands_for;  // the tensor that it is saved as
        std::uint64_t begin = 0;                  // of the saved bytes
    };

    static std::uint64_t elements(const TensorValue& t) {
        std::uint64_t count = 1;
        for (const std::uint64_t extent : t.shape) {
            count *= extent;  // no overflow: fits() has checked it, or one is 0
        }
        return count;
    }

    // Whether its elements are contiguous in memory, and safetensors has its type.
    static bool plain(const TensorValue& t) {
        if (t.conjugated || t.negated || t.type == tensor::ElementType::kF4E2M1 ||
            format::safetensors::name_of(t.type).empty()) {
            return false;
        }
        if (std::find(t.shape.begin(), t.shape.end(), 0U) != t.shape.end()) {
            // Extents next to a 0 may multiply to anything.
            return format::safetensors::bytes_of(t.type, t.shape).has_value();
        }
        const auto packed = packed_strides(t.shape);
        for (std::size_t d = 0; d < t.shape.size(); ++d) {
            if (t.shape[d] != 1 && t.strides[d] != packed[d]) {
                return false;
            }
        }
        return true;
    }

    static bool same_view(const TensorValue& a, const TensorValue& b) {
        return a.type == b.type && a.offset == b.offset && a.shape == b.shape &&
               a.strides == b.strides && a.conjugated == b.conjugated && a.negated == b.negated;
    }

    void place(std::uint32_t storage) {
        Look& look = looks_[storage];
        const std::span<const std::byte> data = data_[storage];
        const TensorValue& first = tree_.tensors[look.tensor];
        const auto covers = [&](std::uint32_t index) {
            const TensorValue& t = tree_.tensors[index];
            return t.offset == 0 && plain(t) && elements(t) * element_bytes(t) == data.size();
        };
        const auto other = std::find_if(look.others.begin(), look.others.end(),
                                        [&](const auto& row) { return covers(row.first); });
        const bool alone =
            plain(first) && std::all_of(look.others.begin(), look.others.end(), [&](const auto& o) {
                return same_view(first, tree_.tensors[o.first]);
            });
        const bool all = covers(look.tensor);
        if (!all && other != look.others.end()) {
            look.stands_for = other->first;
            look.name = std::move(other->second);
        } else if (all || alone) {
            look.stands_for = look.tensor;
        }
        if (look.stands_for) {
            const TensorValue& t = tree_.tensors[*look.stands_for];
            look.begin = elements(t) == 0 ? 0 : t.offset * element_bytes(t);
            look.name = names_.unique(look.name);
            state_.tensors.push_back({look.name, std::string(format::safetensors::name_of(t.type)),
                                      t.shape,
                                      data.subspan(look.begin, elements(t) * element_bytes(t))});
        } else {
            look.name = names_.unique(std::string(cut(look.name)) + ".storage");
            state_.tensors.push_back({look.name, "U8", {data.size()}, data});
        }
        storages_text_ += look.number == 0 ? "" : ",";
        append_storage(storages_text_, look.name, tree_.storages[storage].location);
    }

    static std::uint64_t element_bytes(const TensorValue& t) {
        return format::torch_type(t.type)->torch_bytes();
    }

    // ---- JSON ----

    void write() {
        out_.reserve(order_.size() * kValueBytesGuess + storages_text_.size());
        StructurePen pen(out_, numbers_, tensor_numbers_);
        pen.begin();
        for (std::size_t i = 0; i < order_.size(); ++i) {
            out_ += i == 0 ? "" : ",";
            pen.value(tree_.at(order_[i]));
        }
        out_ += kTensorsBegin;
        for (std::size_t i = 0; i < tensor_order_.size(); ++i) {
            out_ += i == 0 ? "" : ",";
            write_tensor(tree_.tensors[tensor_order_[i]]);
        }
        out_ += storages_text_;
        out_ += kStructureEnd;
        state_.structure = std::move(out_);
    }

    void write_tensor(const TensorValue& t) {
        const Look& look = looks_[t.storage];
        std::string flags;
        flags += t.parameter ? "p" : "";
        flags += t.requires_grad ? "g" : "";
        flags += t.conjugated ? "c" : "";
        flags += t.negated ? "n" : "";
        out_ += fmt::format("[{}", look.number);
        const bool usual = look.stands_for && same_view(t, tree_.tensors[*look.stands_for]) &&
                           t.strides == packed_strides(t.shape);
        if (!usual || !flags.empty()) {
            out_ += fmt::format(",\"{}\"", flags);
        }
        if (!usual) {
            // Nothing is saved of a storage that only an empty tensor uses.
            const bool empty = look.stands_for && elements(tree_.tensors[*look.stands_for]) == 0;
            const std::uint64_t offset = empty ? 0 : t.offset - look.begin / element_bytes(t);
            out_ += fmt::format(",\"{}\",{},[{}],[{}]", format::torch_type(t.type)->torch, offset,
                                fmt::join(t.shape, ","), fmt::join(t.strides, ","));
        }
        out_ += ']';
    }

    const format::ValueTree& tree_;
    std::span<const std::span<const std::byte>> data_;
    std::vector<ValueId> numbers_;  // of values, as they are written
    std::vector<ValueId> order_;    // the values, by those numbers
    std::vector<std::uint32_t> tensor_numbers_;
    std::vector<std::uint32_t> tensor_order_;
    std::vector<Look> looks_;  // of storages
    std::vector<std::uint32_t> storage_order_;
    std::uint64_t data_bytes_ = 0;
    format::ValuePath path_;  // of the value being visited
    std::string name_;
    std::string wrong_;
    Names names_;
    State state_;
    std::string out_;
    std::string storages_text_;
};

}  // namespace

State state_of(const format::ValueTree& tree, std::span<const std::span<const std::byte>> storages,
               int readbacks) {
    if (const std::string wrong = wrong_per_rank(tree); !wrong.empty()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint", wrong));
    }
    State state = Writer(tree, storages).run();
    for (int i = 0; i < readbacks; ++i) {
        check_readback(tree, storages, state);
    }
    const std::string& text = state.structure;
    state.structure_sum = stream::content_hash(std::as_bytes(std::span(text.data(), text.size())));
    return state;
}

}  // namespace penstock::state
