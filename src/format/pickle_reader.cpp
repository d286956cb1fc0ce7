// SPDX-License-Identifier: Apache-2.0
// A stack machine over values. Limits against a hostile pickle: a length is compared with the bytes
// that are left before anything of that length is made; the memo is never longer than the bytes
// that have been read; values are counted, and so are copies by calls. Values that may not be in a
// state become a kRefused value, and the finished tree is checked once, when paths are known.
#include "format/grammar.hpp"
#include "format/pickle.hpp"
#include "format/pickle_calls.hpp"
#include "format/pickle_codes.hpp"
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

class Machine {
public:
    explicit Machine(std::span<const std::byte> bytes)
        : bytes_(bytes), calls_(tree_, bytes.size()), small_(256, kNoValue) {
        none_ = make(ValueKind::kNone);
        false_ = make(ValueKind::kBool);
        true_ = make(ValueKind::kBool);
        tree_.values[true_].flag = true;
        empty_tuple_ = make(ValueKind::kTuple);
    }

    Result<PickleRead> run() {
        if (take(1) != std::optional<std::string_view>("\x80")) {
            return fault(kReading, "its first byte is not that of a pickle of protocol 2 or later",
                         0);
        }
        const auto protocol = number(1);
        if (!protocol || *protocol < 2 || *protocol > kProtocolMax) {
            return fault(kReading, "it is a pickle of a protocol that is not read (2 to 5 are)", 1);
        }
        while (!stopped_) {
            const std::uint64_t begin = at_;
            const auto c = number(1);
            if (!c || !step(static_cast<Code>(*c)) || tree_.values.size() > kValuesMax) {
                return fault(kReading,
                             wrong_.empty() ? "the pickle ends too soon, has a code that is not "
                                              "read, or takes what is not there: it is damaged"
                                            : wrong_,
                             begin);
            }
        }
        return PickleRead{std::move(tree_), at_};
    }

    /// Empty, or the reason for the first refused value, whether or not it is in the state.
    [[nodiscard]] const std::string& refused() const { return calls_.first_refused(); }

    [[nodiscard]] bool cut_short() const { return cut_short_; }

private:
    // ---- bytes ----

    std::optional<std::string_view> take(std::uint64_t count) {
        if (count > bytes_.size() - at_) {
            cut_short_ = true;
            return std::nullopt;
        }
        const char* p = reinterpret_cast<const char*>(bytes_.data()) + at_;
        at_ += count;
        return std::string_view(p, count);
    }
    std::optional<std::uint64_t> number(int bytes) {
        const auto text = take(static_cast<std::uint64_t>(bytes));
        if (!text) {
            return std::nullopt;
        }
        std::uint64_t value = 0;
        for (int i = 0; i < bytes; ++i) {
            value |= static_cast<std::uint64_t>(
                         static_cast<unsigned char>((*text)[static_cast<std::size_t>(i)]))
                     << (8 * i);
        }
        return value;
    }
    // Reads a length of so many bytes, then the text.
    std::optional<std::string_view> counted(int bytes) {
        const auto count = number(bytes);
        return count ? take(*count) : std::nullopt;
    }
    std::optional<std::string_view> line() {
        const std::string_view rest(
            reinterpret_cast<const char*>(bytes_.data()) + at_,
            std::min<std::size_t>(bytes_.size() - at_, kGlobalNameBytesMax + 1));
        const std::size_t end = rest.find('\n');
        if (end == std::string_view::npos) {
            cut_short_ = rest.size() <= kGlobalNameBytesMax;
            return std::nullopt;
        }
        at_ += end + 1;
        return rest.substr(0, end);
    }

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
                return pop().has_value();
            case Code::kPopMark:
                return pop_mark().has_value();
            case Code::kProtocol:
            case Code::kFrame:
                return take(code == Code::kFrame ? 8 : 1).has_value();
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
                return scalar(code) || (wrong_.empty() && container(code));
        }
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
        if (!slot || !has_top() || *slot > at_) {
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

    bool scalar(Code code) {
        switch (code) {
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
        if (!text || text->size() > kBigIntBytesMax) {
            return false;
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
        const ValueId id = make(ValueKind::kFloat);
        tree_.values[id].real = std::bit_cast<double>(bits);
        return push(id);
    }
    bool string(std::optional<std::string_view> text) {
        if (!text) {
            return false;
        }
        return push(is_utf8(*text) ? make(ValueKind::kString, *text)
                                   : calls_.refused("a string is not UTF-8"));
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
            case Code::kFrozenSet:
                return collect(pop_mark(),
                               code == Code::kTuple ? ValueKind::kTuple : ValueKind::kFrozenSet);
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
        if (!items) {
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
        if (top.kind == ValueKind::kRefused) {
            return true;
        }
        if (!is_of_state(top.kind) || !row_of(top.kind).changes ||
            row_of(top.kind).holds != holds) {
            return false;
        }
        top.items.insert(top.items.end(), items->begin(), items->end());
        return true;
    }

    bool called(Code code) {
        switch (code) {
            case Code::kGlobal: {
                const auto module = line();
                const auto name = module ? line() : std::nullopt;
                return name && push(calls_.global(*module, *name));
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
                return both && push(calls_.call((*both)[0], (*both)[1]));
            }
            case Code::kBuild: {
                const auto state = pop();
                if (!state || !has_top()) {
                    return false;
                }
                calls_.build(stack_.back(), *state);
                return true;
            }
            case Code::kBinPersistentId: {
                const auto id = pop();
                return id && push(calls_.persistent(*id));
            }
            default:
                return false;
        }
    }

    std::span<const std::byte> bytes_;
    std::uint64_t at_ = 0;
    ValueTree tree_;
    PickleCalls calls_;
    std::vector<ValueId> stack_;
    std::vector<std::size_t> marks_;
    std::vector<ValueId> memo_;
    std::vector<ValueId> small_;  // integers below 256, one value each
    ValueId none_ = 0;
    ValueId false_ = 0;
    ValueId true_ = 0;
    ValueId empty_tuple_ = 0;
    std::string wrong_;
    bool stopped_ = false;
    bool cut_short_ = false;
};

// Visits each value of a finished tree once, and finds those that a state may not hold.
class Check {
public:
    explicit Check(const ValueTree& tree) : tree_(tree), seen_(tree.values.size(), false) {}

    Result<void> run() {
        return visit(tree_.root, 0)
                   ? Result<void>()
                   : Result<void>(fault(kReading, path_.text(tree_) + ": " + wrong_));
    }

private:
    bool refuse(std::string why) {
        wrong_ = std::move(why);
        return false;
    }

    bool visit(ValueId id, int depth) {
        const Value& v = tree_.at(id);
        if (seen_[id]) {
            return true;
        }
        seen_[id] = true;
        if (depth > kNestingMax) {
            return refuse(fmt::format("it is nested deeper than {} levels", kNestingMax));
        }
        if (v.kind == ValueKind::kNumpyArray && v.text.empty()) {
            return refuse("it is a NumPy array without a state");
        }
        if (std::string wrong = wrong_with(tree_, v); !wrong.empty()) {
            return refuse(std::move(wrong));
        }
        return (is_dict(v.kind) ? entries(v, depth) : items(v, depth)) && attributes(v, depth);
    }

    bool entries(const Value& v, int depth) {
        for (std::size_t i = 0; i < v.items.size(); i += 2) {
            path_.enter_key(v.items[i]);
            if (!visit(v.items[i], depth + 1) || !visit(v.items[i + 1], depth + 1)) {
                return false;
            }
            path_.leave();
        }
        return true;
    }

    bool items(const Value& v, int depth) {
        for (std::size_t i = 0; i < v.items.size(); ++i) {
            path_.enter_index(i);
            if (!visit(v.items[i], depth + 1)) {
                return false;
            }
            path_.leave();
        }
        return true;
    }

    bool attributes(const Value& v, int depth) {
        if (v.attributes == kNoValue) {
            return true;
        }
        path_.enter_attributes();
        if (!visit(v.attributes, depth + 1)) {
            return false;
        }
        path_.leave();
        return true;
    }

    const ValueTree& tree_;
    std::vector<bool> seen_;
    ValuePath path_;  // of the value being visited
    std::string wrong_;
};

}  // namespace

Result<PickleRead> read_pickle(std::span<const std::byte> bytes, bool* cut_short) {
    if (bytes.size() > kPickleBytesMax) {
        return fault(kReading, fmt::format("its pickle has {} bytes; no more than {} are read",
                                           bytes.size(), kPickleBytesMax));
    }
    Machine machine(bytes);
    auto made = machine.run();
    if (cut_short != nullptr) {
        *cut_short = machine.cut_short();
    }
    PENSTOCK_TRY(read, std::move(made));
    PENSTOCK_CHECK(Check(read.tree).run());
    if (!machine.refused().empty()) {
        return fault(kReading, "next to the state, which does not hold it: " + machine.refused());
    }
    return read;
}

}  // namespace penstock::format
