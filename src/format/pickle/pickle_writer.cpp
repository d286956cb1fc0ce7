// SPDX-License-Identifier: Apache-2.0
// Writes the bytes of Python's pickler and torch.save at protocol 2, with one difference: only
// values that are used again are memoized, which halves the bytes. Then it is read again and
// compared with the input: a value that would not come back is an error here.
#include "base/assert.hpp"
#include "format/grammar.hpp"
#include "format/pickle/pickle.hpp"
#include "format/pickle/pickle_codes.hpp"
#include "format/pickle/pickle_text.hpp"
#include "format/rebuilt.hpp"
#include "format/torch_types.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock::format {

namespace {

using pickle::Code;

constexpr std::string_view kWriting = "write .pt";
constexpr std::size_t kBatch = 1000;  // items between two marks, as Python's pickler

class Writer : PickleText {
public:
    Writer(const ValueTree& tree, const PickleOptions& options)
        : PickleText(options.numpy_module), tree_(tree) {}

    Result<std::string> run() {
        count_uses();
        name_storages();
        code(Code::kProtocol);
        out_ += '\x02';
        if (!value(tree_.root, 0)) {
            return fault(kWriting, path_.text(tree_) + ": " + wrong_);
        }
        code(Code::kStop);
        if (out_.size() > kPickleBytesMax) {
            return fault(kWriting,
                         fmt::format("the state without its tensors takes {} bytes, and {} "
                                     "are read; make tensors of what is large",
                                     out_.size(), kPickleBytesMax));
        }
        return std::move(out_);
    }

private:
    // ---- before the first byte ----

    void count_uses() {
        uses_.assign(tree_.values.size(), 0);
        const auto use = [this](ValueId id) {
            if (id != kNoValue && uses_[id] < 2) {
                ++uses_[id];
            }
        };
        use(tree_.root);
        for (const Value& v : tree_.values) {
            std::for_each(v.items.begin(), v.items.end(), use);
            use(v.attributes);
        }
        // A tuple that contains itself is met again inside itself, and so is everything in between.
        const bool ring =
            std::any_of(tree_.values.begin(), tree_.values.end(), [&](const Value& v) {
                return v.kind == ValueKind::kTuple &&
                       uses_[static_cast<ValueId>(&v - &tree_.values[0])] > 1 &&
                       std::any_of(v.items.begin(), v.items.end(),
                                   [&](ValueId item) { return !tree_.at(item).items.empty(); });
            });
        for (ValueId id = 0; ring && id < uses_.size(); ++id) {
            uses_[id] = tree_.at(id).items.empty() ? uses_[id] : 2;
        }
        memo_.assign(tree_.values.size(), kNoMemo);
    }

    struct StorageClass {
        std::string_view name;  ///< empty: untyped
        std::uint64_t unit_bytes = 1;

        bool operator==(const StorageClass&) const = default;
    };

    // Gives a storage the class of its tensors' type, if they have one type and it has a class.
    void name_storages() {
        storage_classes_.assign(tree_.storages.size(), {});
        std::vector<bool> seen(tree_.storages.size(), false);
        std::vector<std::string_view> held = held_storages();
        const auto name = [&](std::uint32_t storage, const StorageClass& fitting) {
            StorageClass& known = storage_classes_[storage];
            known = !seen[storage] || known == fitting ? fitting : StorageClass();
            seen[storage] = true;
        };
        for (std::size_t i = 0; i < tree_.tensors.size(); ++i) {
            const TensorValue& t = tree_.tensors[i];
            const TorchType* type = torch_type(t.type);
            const std::string_view its = !held[i].empty()  ? held[i]
                                         : type != nullptr ? type->torch_storage
                                                           : std::string_view();
            const bool typed = type != nullptr && !its.empty() &&
                               tree_.storages[t.storage].bytes % type->torch_bytes() == 0;
            name(t.storage, typed ? StorageClass{its, type->torch_bytes()} : StorageClass());
        }
    }

    // The classes of storages of quantized tensors, by the tensor that is the storage's whole.
    [[nodiscard]] std::vector<std::string_view> held_storages() const {
        std::vector<std::string_view> out(tree_.tensors.size());
        for (const Value& v : tree_.values) {
            const bool may = v.kind == ValueKind::kRebuilt && v.items.size() > 1 &&
                             (v.text == "quantized" || v.text == "storage");
            const HeldType* held = may ? held_type_named(tree_.at(v.items[1]).text) : nullptr;
            const ValueId whole = held != nullptr ? v.items[0] : tree_.root;
            if (held != nullptr && tree_.at(whole).kind == ValueKind::kTensor) {
                out[static_cast<std::size_t>(tree_.at(whole).integer)] = held->storage;
            }
        }
        return out;
    }

    // ---- values ----

    bool value(ValueId id, int depth) {
        PENSTOCK_ASSERT(id < tree_.values.size());
        const Value& v = tree_.at(id);
        if (memo_[id] != kNoMemo) {
            get(memo_[id]);
            return true;
        }
        if (depth > kNestingMax) {
            return refuse(fmt::format("it is nested deeper than {} levels", kNestingMax));
        }
        if (std::string wrong = wrong_with(tree_, v); !wrong.empty()) {
            return refuse(std::move(wrong));
        }
        return scalar(v) || (wrong_.empty() && composed(id, v, depth));
    }

    // Numbers a value that is used again.
    void keep(ValueId id) {
        if (uses_[id] > 1) {
            memo_[id] = next_;
            put(next_++);
        }
    }

    bool scalar(const Value& v) {
        switch (v.kind) {
            case ValueKind::kNone:
                code(Code::kNone);
                return true;
            case ValueKind::kBool:
                code(v.flag ? Code::kTrue : Code::kFalse);
                return true;
            case ValueKind::kInt:
                integer(v.integer);
                return true;
            case ValueKind::kBigInt:
                code(v.text.size() < 256 ? Code::kLong1 : Code::kLong4);
                number(v.text.size(), v.text.size() < 256 ? 1 : 4);
                out_ += v.text;
                return true;
            case ValueKind::kFloat:
                real(v.real);
                return true;
            case ValueKind::kComplex:
                global("__builtin__", "complex");
                real(v.real);
                real(v.imaginary);
                code(Code::kTuple2);
                code(Code::kReduce);
                return true;
            case ValueKind::kString:
                return string(v.text);
            case ValueKind::kBytes:
                return bytes(v.text);
            case ValueKind::kDtype:
                constant(v.text);
                return true;
            case ValueKind::kDevice:
                device(v.text);
                return true;
            default:
                return false;
        }
    }

    bool composed(ValueId id, const Value& v, int depth) {
        switch (v.kind) {
            case ValueKind::kList:
                code(Code::kEmptyList);
                keep(id);
                return list_items(v, depth);
            case ValueKind::kTuple:
                return tuple(id, v, depth);
            case ValueKind::kSize:
                global("torch", "Size");
                return tuple_items(v, depth) && (tuple_of(v.items.size()), called(id), true);
            case ValueKind::kSet:
            case ValueKind::kFrozenSet:
                global("__builtin__", v.kind == ValueKind::kSet ? "set" : "frozenset");
                code(Code::kEmptyList);
                return list_items(v, depth) && (called(id), true);
            case ValueKind::kByteArray:
                global("__builtin__", "bytearray");
                return bytes(v.text) && (called(id), true);
            case ValueKind::kPickled:
                // torch.load(weights_only=False) makes the object, weights_only=True refuses it.
                global("_pickle", "loads");
                return bytes(v.text) && (called(id), true);
            case ValueKind::kDict:
                code(Code::kEmptyDict);
                keep(id);
                return dict_items(v, depth);
            case ValueKind::kOrderedDict:
                empty_ordered_dict();
                keep(id);
                return dict_items(v, depth) && attributes(v, depth);
            case ValueKind::kDefaultDict:
                global("collections", "defaultdict");
                if (v.text.empty()) {
                    code(Code::kNone);
                } else {
                    const std::string_view module = factory_named(v.text)->module;
                    global(module == "builtins" ? "__builtin__" : module, v.text);
                }
                called(id);
                return dict_items(v, depth);
            case ValueKind::kCounter:
                // Filled later, as it may contain itself. (Python's pickler calls it with a dict.)
                global("collections", "Counter");
                code(Code::kEmptyTuple);
                code(Code::kReduce);
                keep(id);
                return dict_items(v, depth);
            case ValueKind::kTensor:
                return tensor(v, depth) && (keep(id), true);
            case ValueKind::kRebuilt:
                return rebuilt(v, depth) && (keep(id), true);
            case ValueKind::kNumpyScalar:
            case ValueKind::kNumpyArray:
                return numpy(tree_, v) && (keep(id), true);
            case ValueKind::kUnread:
                return refuse(fmt::format("it is an object that was not read ({})",
                                          v.text.empty() ? "object" : v.text));
            case ValueKind::kPerRank:
                return refuse(
                    "it is a value for each rank, which only a CheckpointStore keeps; name what is "
                    "wanted without it");
            default:
                return refuse("it is nothing that a state may hold");
        }
    }

    // Writes the call of a function with the one value on top.
    void called(ValueId id) {
        code(Code::kTuple1);
        code(Code::kReduce);
        keep(id);
    }

    bool item(ValueId id, std::size_t index, int depth) {
        path_.enter_index(index);
        if (!value(id, depth + 1)) {
            return false;
        }
        path_.leave();
        return true;
    }

    bool list_items(const Value& v, int depth) {
        for (std::size_t begin = 0; begin < v.items.size(); begin += kBatch) {
            const std::size_t end = std::min(begin + kBatch, v.items.size());
            code(Code::kMark);
            for (std::size_t i = begin; i < end; ++i) {
                if (!item(v.items[i], i, depth)) {
                    return false;
                }
            }
            code(Code::kAppends);
        }
        return true;
    }

    bool tuple_items(const Value& v, int depth) {
        if (v.items.size() > 3) {
            code(Code::kMark);
        }
        for (std::size_t i = 0; i < v.items.size(); ++i) {
            if (!item(v.items[i], i, depth)) {
                return false;
            }
        }
        return true;
    }

    // A tuple that contains itself (through a list) was made while its items were written; uses
    // that one.
    bool tuple(ValueId id, const Value& v, int depth) {
        if (!tuple_items(v, depth)) {
            return false;
        }
        if (memo_[id] == kNoMemo) {
            tuple_of(v.items.size());
            keep(id);
            return true;
        }
        if (v.items.size() > 3) {
            code(Code::kPopMark);
        } else {
            out_.append(v.items.size(), static_cast<char>(Code::kPop));
        }
        get(memo_[id]);
        return true;
    }

    bool dict_items(const Value& v, int depth) {
        for (std::size_t begin = 0; begin < v.items.size(); begin += 2 * kBatch) {
            const std::size_t end = std::min(begin + 2 * kBatch, v.items.size());
            code(Code::kMark);
            for (std::size_t i = begin; i < end; i += 2) {
                path_.enter_key(v.items[i]);
                if (!value(v.items[i], depth + 1) || !value(v.items[i + 1], depth + 1)) {
                    return false;
                }
                path_.leave();
            }
            code(Code::kSetItems);
        }
        return true;
    }

    bool attributes(const Value& v, int depth) {
        if (v.attributes == kNoValue) {
            return true;
        }
        path_.enter_attributes();
        if (!value(v.attributes, depth + 1)) {
            return false;
        }
        path_.leave();
        code(Code::kBuild);
        return true;
    }

    // The function, and what stands before its arguments; `state`: attributes are set afterwards.
    void begin_made(std::string_view function, bool state, bool jagged = false) {
        constexpr std::string_view kNested = "torch.nested._internal.nested_tensor";
        if (state) {
            global("torch._tensor", "_rebuild_from_type_v2");
            code(Code::kMark);
        }
        global(jagged ? kNested : "torch._utils", function);
        if (state) {
            global(jagged ? kNested : "torch", jagged ? "NestedTensor" : "Tensor");
        }
        code(Code::kMark);
    }

    bool end_made(const Value& v, bool state, bool requires_grad, int depth) {
        code(Code::kTuple);
        if (state) {
            if (!own_dict(v, requires_grad, depth)) {
                return false;
            }
            code(Code::kTuple);
        }
        code(Code::kReduce);
        return true;
    }

    bool own_dict(const Value& v, bool requires_grad, int depth) {
        code(Code::kEmptyDict);
        if (requires_grad) {
            string("requires_grad");
            code(Code::kTrue);
            code(Code::kSetItem);
        }
        if (v.attributes == kNoValue) {
            return true;
        }
        path_.enter_attributes();
        if (!dict_items(tree_.at(v.attributes), depth + 1)) {
            return false;
        }
        path_.leave();
        return true;
    }

    // `wanted`: the class of an empty storage, which has no type of its own.
    void persistent(std::uint32_t number, std::string_view wanted = {}) {
        const StorageValue& storage = tree_.storages[number];
        const StorageClass its = storage.bytes == 0 && !wanted.empty() ? StorageClass{wanted, 1}
                                                                       : storage_classes_[number];
        code(Code::kMark);
        string("storage");
        if (its.name.empty()) {
            global("torch.storage", "UntypedStorage");
        } else {
            global("torch", its.name);
        }
        string(std::to_string(number));
        string(storage.location);
        integer(static_cast<std::int64_t>(storage.bytes / its.unit_bytes));
        code(Code::kTuple);
        code(Code::kBinPersistentId);
    }

    // `dtype`: by that name, and not its own.
    bool tensor(const Value& v, int depth, std::string_view dtype = {}) {
        const TensorValue& t = tree_.tensors[static_cast<std::size_t>(v.integer)];
        const bool typed = dtype.empty() && !storage_classes_[t.storage].name.empty();
        const bool state = v.attributes != kNoValue;
        if (t.parameter) {
            begin_parameter(state);
        }
        // torch cannot set the storage of a tensor that requires grad, which its v3 does. So this
        // one gets the attribute afterwards.
        const bool grad = t.requires_grad && !t.parameter;
        const bool after = (grad && !typed) || (state && !t.parameter);
        begin_made(typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3", after);
        persistent(t.storage);
        integer(static_cast<std::int64_t>(t.offset));
        integers(t.shape);
        integers(t.strides);
        code(grad && typed ? Code::kTrue : Code::kFalse);
        empty_ordered_dict();
        if (!typed) {
            global("torch", dtype.empty() ? torch_type(t.type)->torch : dtype);
        }
        tensor_flags(t);
        return end_made(v, after, grad && !typed, depth) &&
               (!t.parameter || end_parameter(v, t.requires_grad, depth));
    }

    void begin_parameter(bool state) {
        global("torch._utils", state ? "_rebuild_parameter_with_state" : "_rebuild_parameter");
        if (state) {
            code(Code::kMark);
        }
    }
    bool end_parameter(const Value& v, bool requires_grad, int depth) {
        code(requires_grad ? Code::kTrue : Code::kFalse);
        empty_ordered_dict();
        const bool state = v.attributes != kNoValue;
        if (state && !own_dict(v, false, depth)) {
            return false;
        }
        code(state ? Code::kTuple : Code::kTuple3);
        code(Code::kReduce);
        return true;
    }

    void tensor_flags(const TensorValue& t) {
        if (!t.conjugated && !t.negated) {
            return;
        }
        code(Code::kEmptyDict);
        for (const auto& [name, set] :
             {std::pair("conj", t.conjugated), std::pair("neg", t.negated)}) {
            if (set) {
                string(name);
                code(Code::kTrue);
                code(Code::kSetItem);
            }
        }
    }

    // The storage of a kRebuilt, and its class.
    [[nodiscard]] const TensorValue& whole_of(const Value& v) const {
        return tree_.tensors[static_cast<std::size_t>(tree_.at(v.items[0]).integer)];
    }
    [[nodiscard]] std::string_view class_of(const Value& v) const {
        const HeldType* held = held_type_named(tree_.at(v.items[1]).text);
        return held != nullptr ? held->storage : torch_type(whole_of(v).type)->torch_storage;
    }

    bool rebuilt(const Value& v, int depth) {
        const RebuiltRow& row = *rebuilt_tagged(v.text);
        switch (row.rebuilt) {
            case Rebuilt::kStorage:
                persistent(whole_of(v).storage, class_of(v));
                return true;
            case Rebuilt::kParameter:
                begin_parameter(v.attributes != kNoValue);
                return item(v.items[0], 0, depth) &&
                       end_parameter(v, tree_.at(v.items[1]).flag, depth);
            case Rebuilt::kView: {
                Value made = tree_.at(v.items[0]);
                made.attributes = v.attributes;
                return tensor(made, depth, tree_.at(v.items[1]).text);
            }
            default:
                break;
        }
        const bool state = v.attributes != kNoValue;
        begin_made(row.function, state, row.rebuilt == Rebuilt::kJagged);
        return arguments(v, row, depth) && end_made(v, state, false, depth);
    }

    // Keywords of torch's NestedTensor. The cache has no parts that are None, as in torch.
    bool keywords(const Value& v, const RebuiltRow& row, int depth) {
        const auto entry = [&](std::size_t part, std::string_view keyword) {
            string(keyword);
            return item(v.items[part], part, depth) && (code(Code::kSetItem), true);
        };
        code(Code::kEmptyDict);
        if (!entry(0, "values") || !entry(1, "offsets") || !entry(2, "lengths") ||
            !entry(5, "_ragged_idx") || !entry(6, "requires_grad")) {
            return false;
        }
        string("_metadata_cache");
        code(Code::kEmptyDict);
        for (const std::size_t part : {3U, 4U}) {
            const bool none = tree_.at(v.items[part]).kind == ValueKind::kNone;
            if (!none && !entry(part, row.parts[part].name)) {
                return false;
            }
        }
        code(Code::kSetItem);
        return true;
    }

    bool arguments(const Value& v, const RebuiltRow& row, int depth) {
        const auto parts = [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = begin; i < end; ++i) {
                if (!item(v.items[i], i, depth)) {
                    return false;
                }
            }
            return true;
        };
        if (row.rebuilt == Rebuilt::kQuantized) {
            const std::uint32_t storage = whole_of(v).storage;
            if (storage_classes_[storage].name != class_of(v) &&
                tree_.storages[storage].bytes != 0) {
                return refuse(
                    "it is a quantized tensor that shares its memory with tensors of another type, "
                    "which torch does not read; save a clone()");
            }
            const bool axis = tree_.at(v.items[8]).kind != ValueKind::kNone;
            persistent(storage, class_of(v));
            if (!parts(2, 5)) {
                return false;
            }
            code(Code::kMark);
            if (!parts(5, axis ? 9 : 8)) {
                return false;
            }
            code(Code::kTuple);
            if (!parts(9, 10)) {
                return false;
            }
            empty_ordered_dict();
            return true;
        }
        if (row.rebuilt == Rebuilt::kJagged) {
            return keywords(v, row, depth);
        }
        if (sparse_of_layout(row.tag) == nullptr) {
            return parts(0, row.count);
        }
        constant(row.tag);
        code(Code::kMark);
        if (!parts(0, row.count)) {
            return false;
        }
        code(Code::kTuple);
        return true;
    }

    static constexpr std::uint32_t kNoMemo = 0xFFFFFFFF;

    const ValueTree& tree_;
    ValuePath path_;  // of the value being visited
    std::vector<std::uint8_t> uses_;
    std::vector<std::uint32_t> memo_;
    std::vector<StorageClass> storage_classes_;
};

}  // namespace

Result<std::string> write_pickle(const ValueTree& tree, const PickleOptions& options) {
    PENSTOCK_TRY(pickle, Writer(tree, options).run());
    auto back = read_pickle(std::as_bytes(std::span(pickle)));
    if (!back) {
        return fault(kWriting, "the state cannot be read again: " + back.error().message);
    }
    if (const ValueId other = difference(tree, back->tree); other != kNoValue) {
        return fault(kWriting, place_of(tree, other) + ": it would not come back as it is");
    }
    return pickle;
}

}  // namespace penstock::format
