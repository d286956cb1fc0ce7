// SPDX-License-Identifier: Apache-2.0
// Writes the bytes of Python's pickler and torch.save at protocol 2, with one difference: only
// values that are used again are memoized, which halves the bytes. Then it is read again and
// compared with the input: a value that would not come back is an error here.
#include "base/assert.hpp"
#include "format/grammar.hpp"
#include "format/pickle.hpp"
#include "format/pickle_codes.hpp"
#include "format/pickle_output.hpp"
#include "format/torch_types.hpp"
#include "format/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory_resource>
#include <unordered_map>
#include <utility>

namespace penstock::format {

namespace {

using pickle::Code;

constexpr std::string_view kWriting = "write .pt";
constexpr std::size_t kBatch = 1000;  // items between two marks, as Python's pickler

class Writer : PickleOutput {
public:
    Writer(const ValueTree& tree, const PickleOptions& options)
        : tree_(tree), numpy_module_(options.numpy_module) {}

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

    // Gives a storage the class of its tensors' type, if they have one type and it has a class.
    void name_storages() {
        storage_types_.assign(tree_.storages.size(), nullptr);
        std::vector<bool> seen(tree_.storages.size(), false);
        for (const TensorValue& t : tree_.tensors) {
            const TorchType* type = torch_type(t.type);
            const bool typed = type != nullptr && !type->torch_storage.empty() &&
                               tree_.storages[t.storage].bytes % type->torch_bytes() == 0;
            const TorchType* fitting = typed ? type : nullptr;
            const TorchType*& known = storage_types_[t.storage];
            known = !seen[t.storage] || known == fitting ? fitting : nullptr;
            seen[t.storage] = true;
        }
    }

    // ---- bytes ----

    // Writes the length in 4 bytes.
    bool begin_string(std::uint64_t bytes) {
        if (bytes > UINT32_MAX) {
            return refuse(
                fmt::format("it takes {} bytes in the pickle, and {} are the most; use a tensor",
                            bytes, UINT32_MAX));
        }
        code(Code::kBinUnicode);
        number(bytes, 4);
        return true;
    }
    // Writes a string once, and later its number: keys of states repeat.
    bool string(std::string_view text) {
        if (const auto known = strings_.find(text); known != strings_.end()) {
            get(known->second);
            return true;
        }
        if (!begin_string(text.size())) {
            return false;
        }
        strings_.emplace(kept(text), next_);
        out_ += text;
        put(next_++);
        return true;
    }
    std::string_view kept(std::string_view text) {
        auto* const copy =
            static_cast<char*>(memory_.allocate(std::max<std::size_t>(text.size(), 1), 1));
        std::copy(text.begin(), text.end(), copy);
        return {copy, text.size()};
    }
    void global(std::string_view module, std::string_view name) {
        const auto [known, fresh] =
            globals_.try_emplace(fmt::format("{}\n{}\n", module, name), next_);
        if (!fresh) {
            get(known->second);
            return;
        }
        code(Code::kGlobal);
        out_ += known->first;
        put(next_++);
    }
    // Writes bytes as the Latin-1 of a string: protocol 2 has no bytes.
    bool bytes(std::string_view data) {
        global("_codecs", "encode");
        if (!begin_string(utf8_bytes(data))) {
            return false;
        }
        append_utf8(out_, data);
        string("latin1");
        code(Code::kTuple2);
        code(Code::kReduce);
        return true;
    }
    void empty_ordered_dict() {
        global("collections", "OrderedDict");
        code(Code::kEmptyTuple);
        code(Code::kReduce);
    }
    // ---- values ----

    bool refuse(std::string why) {
        wrong_ = std::move(why);
        return false;
    }

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
                global("torch", v.text);
                return true;
            case ValueKind::kDevice:
                device(v.text);
                return true;
            default:
                return false;
        }
    }

    void device(std::string_view name) {
        global("torch", "device");
        const std::size_t colon = name.find(':');
        string(name.substr(0, colon));
        if (colon == std::string_view::npos) {
            code(Code::kTuple1);
        } else {
            std::int64_t index = 0;
            for (const char c : name.substr(colon + 1)) {
                index = index * 10 + (c - '0');
            }
            integer(index);
            code(Code::kTuple2);
        }
        code(Code::kReduce);
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
                return tensor(tree_.tensors[static_cast<std::size_t>(v.integer)]) &&
                       (keep(id), true);
            case ValueKind::kNumpyScalar:
            case ValueKind::kNumpyArray:
                return numpy(v) && (keep(id), true);
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

    bool tensor(const TensorValue& t) {
        const TorchType* type = torch_type(t.type);
        const StorageValue& storage = tree_.storages[t.storage];
        if (t.parameter) {
            global("torch._utils", "_rebuild_parameter");
        }
        const TorchType* of_storage = storage_types_[t.storage];
        const bool typed = of_storage != nullptr;
        global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
        code(Code::kMark);
        code(Code::kMark);
        string("storage");
        if (typed) {
            global("torch", of_storage->torch_storage);
        } else {
            global("torch.storage", "UntypedStorage");
        }
        string(std::to_string(t.storage));
        string(storage.location);
        integer(static_cast<std::int64_t>(storage.bytes / (typed ? of_storage->torch_bytes() : 1)));
        code(Code::kTuple);
        code(Code::kBinPersistentId);
        integer(static_cast<std::int64_t>(t.offset));
        integers(t.shape);
        integers(t.strides);
        code(t.requires_grad && !t.parameter ? Code::kTrue : Code::kFalse);
        empty_ordered_dict();
        if (!typed) {
            global("torch", type->torch);
        }
        tensor_flags(t);
        code(Code::kTuple);
        code(Code::kReduce);
        if (t.parameter) {
            code(t.requires_grad ? Code::kTrue : Code::kFalse);
            empty_ordered_dict();
            code(Code::kTuple3);
            code(Code::kReduce);
        }
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

    bool numpy(const Value& v) {
        if (v.kind == ValueKind::kNumpyScalar) {
            global(numpy_module_, "scalar");
            numpy_dtype(v.text);
            // NumPy writes an empty text as one character that is 0, and requires it.
            const bool none = v.data.empty();
            if (!bytes(none ? std::string(v.text[1] == 'U' ? 4 : 1, '\0') : v.data)) {
                return false;
            }
            code(Code::kTuple2);
            code(Code::kReduce);
            return true;
        }
        global(numpy_module_, "_reconstruct");
        global("numpy", "ndarray");
        integers({0});
        bytes("b");
        code(Code::kTuple3);
        code(Code::kReduce);
        code(Code::kMark);
        integer(1);
        std::vector<std::uint64_t> shape;
        for (const ValueId item : v.items) {
            shape.push_back(static_cast<std::uint64_t>(tree_.at(item).integer));
        }
        integers(shape);
        numpy_dtype(v.text);
        code(v.flag ? Code::kTrue : Code::kFalse);
        if (!bytes(v.data)) {
            return false;
        }
        code(Code::kTuple);
        code(Code::kBuild);
        return true;
    }

    // "<f8": its byte order, and the rest as the name.
    void numpy_dtype(std::string_view text) {
        const auto [known, fresh] = globals_.try_emplace("dtype " + std::string(text), next_);
        std::uint32_t& slot = known->second;
        if (!fresh) {
            get(slot);
            return;
        }
        global("numpy", "dtype");
        string(text.substr(1));
        code(Code::kFalse);
        code(Code::kTrue);
        code(Code::kTuple3);
        code(Code::kReduce);
        slot = next_;
        put(next_++);
        code(Code::kMark);
        integer(3);
        string(text.substr(0, 1));
        code(Code::kNone);
        code(Code::kNone);
        code(Code::kNone);
        const char kind = text[1];
        std::int64_t bytes_each = -1;
        if (kind == 'U' || kind == 'S') {
            bytes_each = 0;
            for (const char c : text.substr(2)) {
                bytes_each = bytes_each * 10 + (c - '0');
            }
            bytes_each *= kind == 'U' ? 4 : 1;
        }
        integer(bytes_each);
        integer(kind == 'U' ? 4 : kind == 'S' ? 1 : -1);
        integer(kind == 'U' ? 8 : 0);
        code(Code::kTuple);
        code(Code::kBuild);
    }

    static constexpr std::uint32_t kNoMemo = 0xFFFFFFFF;

    const ValueTree& tree_;
    const std::string numpy_module_;
    ValuePath path_;  // of the value being visited
    std::string wrong_;
    std::vector<std::uint8_t> uses_;
    std::vector<std::uint32_t> memo_;
    std::vector<const TorchType*> storage_types_;
    std::pmr::monotonic_buffer_resource memory_;  // memory of strings_ and their texts
    std::pmr::unordered_map<std::string_view, std::uint32_t> strings_{&memory_};
    std::unordered_map<std::string, std::uint32_t> globals_;
    std::uint32_t next_ = 0;  // next number of the memo
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
