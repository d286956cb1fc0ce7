// SPDX-License-Identifier: Apache-2.0
// A stack machine over values. Limits against a hostile pickle: a length is compared with the bytes
// that are left before anything of that length is made; the memo is never longer than the bytes
// that have been read; values are counted, and so are copies by calls. Values that may not be in a
// state become place-holders (pickle_unread.hpp), some of them in the finished tree.
#include "format/grammar.hpp"
#include "format/numpy/numpy_types.hpp"
#include "format/pickle/pickle.hpp"
#include "format/pickle/pickle_calls.hpp"
#include "format/pickle/pickle_codes.hpp"
#include "format/pickle/pickle_input.hpp"
#include "format/pickle/pickle_lines.hpp"
#include "format/pickle/pickle_unread.hpp"
#include "format/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

namespace penstock::format {

namespace {

using pickle::Code;

constexpr std::string_view kReading = "read .pt";
constexpr std::size_t kValuesMax = std::size_t{1} << 26;
constexpr int kProtocolMax = 5;

class Machine : PickleInput {
public:
    explicit Machine(std::span<const std::byte> bytes)
        : PickleInput(bytes),
          calls_(tree_, bytes.size()),
          holders_(tree_, bytes.size()),
          small_(256, kNoValue) {
        none_ = make(ValueKind::kNone);
        false_ = make(ValueKind::kBool);
        true_ = make(ValueKind::kBool);
        tree_.values[true_].flag = true;
        empty_tuple_ = make(ValueKind::kTuple);
    }

    Result<PickleRead> run() {
        while (!stopped_) {
            const std::uint64_t begin = at();
            const auto c = number(1);
            const bool made = c && step(static_cast<Code>(*c));
            if (!unsupported_.empty()) {
                return unsupported(kReading, unsupported_, begin);
            }
            if (!made) {
                return fault(kReading, pickle::why_damaged(c, cut_short()), begin);
            }
            if (tree_.values.size() > kValuesMax) {
                return unsupported(
                    kReading,
                    fmt::format("it has more than {} values; no more are read", kValuesMax), begin);
            }
        }
        calls_.finish(tree_.root);
        PENSTOCK_CHECK(settle(tree_, holders_, thrown_away_));
        return PickleRead{std::move(tree_), at()};
    }

    using PickleInput::cut_short;

private:
    // ---- the stack ----

    ValueId make(ValueKind kind, std::string_view text = {}) {
        Value value;
        value.kind = kind;
        value.text = text;
        return tree_.add(std::move(value));
    }
    bool push(ValueId id) {
        stack_.push_back(id);
        return true;
    }
    [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
    std::optional<ValueId> pop() {
        if (stack_.size() <= floor()) {
            return std::nullopt;
        }
        const ValueId id = stack_.back();
        stack_.pop_back();
        return id;
    }
    std::optional<std::vector<ValueId>> pop_mark() {
        if (marks_.empty()) {
            return std::nullopt;
        }
        const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
        std::vector<ValueId> items(begin, stack_.end());
        stack_.erase(begin, stack_.end());
        marks_.pop_back();
        return items;
    }
    [[nodiscard]] bool has_top() const { return stack_.size() > floor(); }

    // ---- codes ----

    bool step(Code code) {
        switch (code) {
            case Code::kMark:
                marks_.push_back(stack_.size());
                return true;
            case Code::kStop:
                return stop();
            case Code::kPop:
                return throw_away(pop_some(1));
            case Code::kPopMark:
                return throw_away(pop_mark());
            case Code::kDuplicate:
                return has_top() && push(stack_.back());
            case Code::kProtocol:
                return protocol(number(1));
            case Code::kFrame:
                return take(8).has_value();
            case Code::kPut:
                return memoize(line_number());
            case Code::kGet:
                return recall(line_number());
            case Code::kBinPut:
                return memoize(number(1));
            case Code::kLongBinPut:
                return memoize(number(4));
            case Code::kMemoize:
                return memoize(memo_.size());
            case Code::kBinGet:
                return recall(number(1));
            case Code::kLongBinGet:
                return recall(number(4));
            default:
                return scalar(code) || (unsupported_.empty() && container(code));
        }
    }

    bool protocol(std::optional<std::uint64_t> version) {
        if (version && *version > kProtocolMax) {
            unsupported_ = fmt::format("it is a pickle of protocol {}, and 0 to {} are read",
                                       *version, kProtocolMax);
        }
        return version.has_value();
    }

    bool throw_away(const std::optional<std::vector<ValueId>>& items) {
        for (const ValueId id : items.value_or(std::vector<ValueId>())) {
            if (holders_.is_unread(id)) {
                thrown_away_.push_back(id);
            }
        }
        return items.has_value();
    }

    std::optional<std::uint64_t> line_number() {
        const auto text = line();
        return text ? small_number(*text) : std::nullopt;
    }

    bool stop() {
        const auto root = pop();
        if (!root || !stack_.empty() || !marks_.empty()) {
            return false;
        }
        tree_.root = *root;
        stopped_ = true;
        return true;
    }

    bool memoize(std::optional<std::uint64_t> slot) {
        if (!slot || !has_top() || *slot > at()) {
            return false;
        }
        if (*slot >= memo_.size()) {
            memo_.resize(*slot + 1, kNoValue);
        }
        memo_[*slot] = stack_.back();
        return true;
    }
    bool recall(std::optional<std::uint64_t> slot) {
        return slot && *slot < memo_.size() && memo_[*slot] != kNoValue && push(memo_[*slot]);
    }

    // The texts of protocols 0 and 1.
    bool line_scalar(Code code) {
        const auto text = line();
        if (!text) {
            return false;
        }
        if (code == Code::kInt && (*text == "00" || *text == "01")) {
            return push(*text == "01" ? true_ : false_);
        }
        if (code == Code::kString) {
            return string(string_of_line(*text), *text);
        }
        if (code == Code::kUnicode) {
            return string(unicode_of_line(*text), *text);
        }
        if (code == Code::kFloat) {
            const auto value = float_of_line(*text);
            return push(value ? real(*value)
                              : not_read("float", "a float has a text of another form"));
        }
        const auto digits = integer_of_line(*text);
        return digits ? long_integer(*digits)
                      : push(not_read("int", "an integer has too many digits, or another form"));
    }
    ValueId not_read(std::string_view name, std::string why, ValueId content = kNoValue) {
        return holders_.make(name, std::move(why), content);
    }

    bool scalar(Code code) {
        switch (code) {
            case Code::kInt:
            case Code::kLong:
            case Code::kFloat:
            case Code::kString:
            case Code::kUnicode:
                return line_scalar(code);
            case Code::kNone:
                return push(none_);
            case Code::kTrue:
                return push(true_);
            case Code::kFalse:
                return push(false_);
            case Code::kBinInt1:
                return integer(number(1), 8, false);
            case Code::kBinInt2:
                return integer(number(2), 16, false);
            case Code::kBinInt:
                return integer(number(4), 32, true);
            case Code::kLong1:
                return long_integer(counted(1));
            case Code::kLong4:
                return long_integer(counted(4));
            case Code::kBinFloat:
                return real(take(8));
            case Code::kBinUnicode:
            case Code::kBinString:
                return string(counted(4));
            case Code::kShortBinUnicode:
            case Code::kShortBinString:
                return string(counted(1));
            case Code::kBinUnicode8:
                return string(counted(8));
            case Code::kShortBinBytes:
                return bytes(counted(1), ValueKind::kBytes);
            case Code::kBinBytes:
                return bytes(counted(4), ValueKind::kBytes);
            case Code::kBinBytes8:
                return bytes(counted(8), ValueKind::kBytes);
            case Code::kByteArray8:
                return bytes(counted(8), ValueKind::kByteArray);
            default:
                return false;
        }
    }

    bool integer(std::optional<std::uint64_t> value, int bits, bool is_signed) {
        if (!value) {
            return false;
        }
        if (bits == 8 && small_[*value] != kNoValue) {
            return push(small_[*value]);
        }
        const ValueId id = make(ValueKind::kInt);
        tree_.values[id].integer =
            is_signed ? static_cast<std::int32_t>(*value) : static_cast<std::int64_t>(*value);
        if (bits == 8) {
            small_[*value] = id;
        }
        return push(id);
    }
    bool long_integer(std::optional<std::string_view> text) {
        if (!text) {
            return false;
        }
        if (text->size() > kBigIntBytesMax) {
            return push(not_read("int", fmt::format("it is an integer of {} bytes; {} are the most",
                                                    text->size(), kBigIntBytesMax)));
        }
        const std::string_view digits = shortest_integer(*text);
        if (digits.size() > 8) {
            return push(make(ValueKind::kBigInt, digits));
        }
        const bool negative = !digits.empty() && static_cast<unsigned char>(digits.back()) >= 0x80;
        std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
        for (std::size_t i = digits.size(); i-- > 0;) {
            value = (value << 8U) | static_cast<unsigned char>(digits[i]);
        }
        const ValueId id = make(ValueKind::kInt);
        tree_.values[id].integer = static_cast<std::int64_t>(value);
        return push(id);
    }
    bool real(std::optional<std::string_view> text) {
        if (!text) {
            return false;
        }
        std::uint64_t bits = 0;
        for (const char c : *text) {
            bits = (bits << 8U) | static_cast<unsigned char>(c);
        }
        return push(real(std::bit_cast<double>(bits)));
    }
    ValueId real(double value) {
        const ValueId id = make(ValueKind::kFloat);
        tree_.values[id].real = value;
        return id;
    }
    bool string(std::optional<std::string_view> text) { return text && string(text, *text); }
    // `raw`: as the pickle has it, for one that is none.
    bool string(const std::optional<std::string_view>& text, std::string_view raw) {
        return push(text && is_utf8(*text)
                        ? make(ValueKind::kString, *text)
                        : not_read("str", "a string is not UTF-8", make(ValueKind::kBytes, raw)));
    }
    bool bytes(std::optional<std::string_view> text, ValueKind kind) {
        return text && push(make(kind, *text));
    }

    bool container(Code code) {
        switch (code) {
            case Code::kEmptyTuple:
                return push(empty_tuple_);
            case Code::kEmptyList:
                return push(make(ValueKind::kList));
            case Code::kEmptyDict:
                return push(make(ValueKind::kDict));
            case Code::kEmptySet:
                return push(make(ValueKind::kSet));
            case Code::kTuple:
                return collect(pop_mark(), ValueKind::kTuple);
            case Code::kFrozenSet:
                return collect(pop_mark(), ValueKind::kFrozenSet);
            case Code::kList:
                return collect(pop_mark(), ValueKind::kList);
            case Code::kDict:
                return collect(pop_mark(), ValueKind::kDict);
            case Code::kTuple1:
                return tuple(1);
            case Code::kTuple2:
                return tuple(2);
            case Code::kTuple3:
                return tuple(3);
            case Code::kAppend:
                return extend(pop_some(1), Holds::kItems);
            case Code::kAppends:
                return extend(pop_mark(), Holds::kItems);
            case Code::kAddItems:
                return extend(pop_mark(), Holds::kKeys);
            case Code::kSetItem:
                return extend(pop_some(2), Holds::kEntries);
            case Code::kSetItems:
                return extend(pop_mark(), Holds::kEntries);
            default:
                return called(code);
        }
    }

    std::optional<std::vector<ValueId>> pop_some(std::size_t count) {
        if (stack_.size() - floor() < count) {
            return std::nullopt;
        }
        std::vector<ValueId> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
        stack_.resize(stack_.size() - count);
        return items;
    }
    bool collect(std::optional<std::vector<ValueId>> items, ValueKind kind) {
        if (!items || (kind == ValueKind::kDict && items->size() % 2 != 0)) {
            return false;
        }
        const ValueId id = make(kind);
        tree_.values[id].items = std::move(*items);
        return push(id);
    }
    bool tuple(std::size_t count) { return collect(pop_some(count), ValueKind::kTuple); }

    // Adds items to the container on top, if the code suits its kind.
    bool extend(std::optional<std::vector<ValueId>> items, Holds holds) {
        if (!items || !has_top() || (holds == Holds::kEntries && items->size() % 2 != 0)) {
            return false;
        }
        Value& top = tree_.values[stack_.back()];
        if (top.kind == ValueKind::kUnread) {
            holders_.extend(stack_.back(), *items, holds);
            return true;
        }
        if (!is_of_state(top.kind) || top.kind == ValueKind::kRebuilt ||
            !row_of(top.kind).changes || row_of(top.kind).holds != holds) {
            return false;
        }
        top.items.insert(top.items.end(), items->begin(), items->end());
        return true;
    }

    bool called(Code code) {
        switch (code) {
            case Code::kGlobal: {
                const auto name = global();
                return name && push(*name);
            }
            case Code::kStackGlobal: {
                const auto both = pop_some(2);
                if (!both || tree_.at((*both)[0]).kind != ValueKind::kString ||
                    tree_.at((*both)[1]).kind != ValueKind::kString) {
                    return false;
                }
                const std::string module = tree_.at((*both)[0]).text;
                const std::string name = tree_.at((*both)[1]).text;
                return push(calls_.global(module, name));
            }
            case Code::kReduce:
            case Code::kNewObject: {
                const auto both = pop_some(2);
                return both && push(call((*both)[0], (*both)[1]));
            }
            case Code::kBuild: {
                const auto state = pop();
                if (!state || !has_top()) {
                    return false;
                }
                build(stack_.back(), *state);
                return true;
            }
            case Code::kBinPersistentId: {
                const auto id = pop();
                return id && push(persistent(*id));
            }
            default:
                return rarely_called(code);
        }
    }

    // Codes of protocols 0 and 1, and those that torch does not write: but for their objects, which
    // are place-holders, nothing is made by them.
    bool rarely_called(Code code) {
        switch (code) {
            case Code::kInstance: {
                const auto name = global();
                return name && call_with(*name, pop_mark());
            }
            case Code::kObject: {
                auto items = pop_mark();
                if (!items || items->empty()) {
                    return false;
                }
                const ValueId function = items->front();
                items->erase(items->begin());
                return call_with(function, std::move(items));
            }
            case Code::kNewObjectEx: {
                const auto all = pop_some(3);
                return all && push(call((*all)[0], (*all)[1], (*all)[2]));
            }
            case Code::kPersistentId: {
                const auto text = line();
                return text && push(persistent(make(ValueKind::kBytes, *text)));
            }
            case Code::kExtension1:
                return extension(number(1));
            case Code::kExtension2:
                return extension(number(2));
            case Code::kExtension4:
                return extension(number(4));
            case Code::kNextBuffer:
                return push(not_read("buffer", "its bytes are outside of the pickle"));
            case Code::kReadonlyBuffer:
                return has_top();
            default:
                return false;
        }
    }

    // ---- calls ----

    std::optional<ValueId> global() {
        const auto module = line(kGlobalNameBytesMax + 1);
        const auto name = module ? line(kGlobalNameBytesMax + 1) : std::nullopt;
        if (!name && !cut_short()) {
            unsupported_ = fmt::format("a name has more than {} bytes", kGlobalNameBytesMax);
        }
        return name ? std::optional(calls_.global(*module, *name)) : std::nullopt;
    }
    bool extension(std::optional<std::uint64_t> code) {
        return code &&
               push(not_read(fmt::format("copyreg.extension{}", *code),
                             "its class is a number in a registry of the program that wrote it"));
    }
    bool call_with(ValueId function, std::optional<std::vector<ValueId>> arguments) {
        if (!collect(std::move(arguments), ValueKind::kTuple)) {
            return false;
        }
        stack_.back() = call(function, stack_.back());
        return true;
    }

    ValueId call(ValueId function, ValueId arguments, ValueId keywords = kNoValue) {
        const bool named = keywords != kNoValue && !tree_.at(keywords).items.empty();
        const bool unread =
            holders_.is_unread(function) || holders_.first_in(arguments) != kNoValue;
        const ValueId made = unread  ? holders_.object_of(function, arguments)
                             : named ? calls_.refused("a call has names for its arguments")
                                     : calls_.call(function, arguments);
        if (holders_.is_unread(made)) {
            holders_.hold_call(made, function, arguments);
            hold_tensor(made, arguments);
            if (named) {
                holders_.hold(made, "__kwargs__", keywords);
            }
        }
        return made;
    }
    // (function, class, its arguments, ...) of a subclass of a tensor: keeps the tensor.
    void hold_tensor(ValueId object, ValueId arguments) {
        const std::vector<ValueId>& items = tree_.at(arguments).items;
        if (items.size() < 3 || tree_.at(items[0]).kind != ValueKind::kGlobal ||
            tree_.at(items[2]).kind != ValueKind::kTuple ||
            holders_.first_in(items[2]) != kNoValue) {
            return;
        }
        const ValueId made = calls_.call(items[0], items[2]);
        if (tree_.at(made).kind == ValueKind::kTensor) {
            holders_.hold(object, "data", made);
        }
    }

    void build(ValueId object, ValueId state) {
        if (holders_.is_unread(object)) {
            holders_.build(object, state);
            return;
        }
        const std::string name = holders_.name_of(object);
        if (!calls_.build(object, state)) {
            holders_.become(object, "it has a state of its own, which is not read");
        }
        if (holders_.is_unread(object)) {
            tree_.values[object].text = name;
            holders_.build(object, state);
        }
    }

    ValueId persistent(ValueId id) {
        // torch before 0.4 kept classes of modules so: ("module", class, file, source).
        const Value& v = tree_.at(id);
        if (v.kind == ValueKind::kTuple && v.items.size() == 4 &&
            tree_.at(v.items[0]).kind == ValueKind::kString &&
            tree_.at(v.items[0]).text == "module") {
            return v.items[1];
        }
        const ValueId made = calls_.persistent(id);
        if (holders_.is_unread(made) && tree_.at(made).items.empty()) {
            tree_.values[made].text = "persistent id";
            holders_.hold(made, "data", id);
        }
        return made;
    }

    ValueTree tree_;
    PickleCalls calls_;
    PlaceHolders holders_;
    std::vector<ValueId> stack_;
    std::vector<std::size_t> marks_;
    std::vector<ValueId> memo_;
    std::vector<ValueId> small_;  // integers below 256, one value each
    ValueId none_ = 0;
    ValueId false_ = 0;
    ValueId true_ = 0;
    ValueId empty_tuple_ = 0;
    std::vector<ValueId> thrown_away_;  // that codes took from the stack; place-holders alone
    std::string unsupported_;
    bool stopped_ = false;
};

}  // namespace

Result<PickleRead> read_pickle(std::span<const std::byte> bytes, bool* cut_short) {
    if (bytes.size() > kPickleBytesMax) {
        return unsupported(
            kReading, fmt::format("its pickle has {} bytes; no more than {} are read", bytes.size(),
                                  kPickleBytesMax));
    }
    Machine machine(bytes);
    auto made = machine.run();
    if (cut_short != nullptr) {
        *cut_short = machine.cut_short();
    }
    return made;
}

}  // namespace penstock::format
