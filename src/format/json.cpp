// SPDX-License-Identifier: Apache-2.0
// RFC 8259 in one pass, without recursion: a loop over the open objects and lists. A byte order
// mark at the beginning is skipped. Names of an object are views of the text (of their own memory
// if they have escapes), compared one by one while they are few, hashed from then on.
#include "format/json.hpp"

#include "format/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <forward_list>
#include <string>
#include <unordered_set>
#include <vector>

namespace penstock::format {

namespace {

using Kind = JsonScalar::Kind;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::size_t kComparedNamesMax = 16;
constexpr std::size_t kShownBytes = 16;  // shown of invalid text
constexpr std::uint64_t kNegativeMax = std::uint64_t{1} << 63U;

// An open object or list.
struct Level {
    bool array = false;
    bool empty = true;
    std::size_t names_begin = 0;                     // of an object, while they are few
    std::unordered_set<std::string_view> many = {};  // all of them, from then on
    std::forward_list<std::string> unescaped = {};
};

constexpr bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

class Reader {
public:
    Reader(std::string_view text, JsonHandler& handler)
        : begin_(text.data()), at_(begin_), end_(begin_ + text.size()), handler_(handler) {
        if (text.starts_with(kByteOrderMark)) {
            at_ += kByteOrderMark.size();
        }
    }

    bool run() {
        skip_space();
        if (!value()) {
            return false;
        }
        while (depth_ > 0) {
            if (!next(levels_[depth_ - 1])) {
                return false;
            }
        }
        skip_space();
        return at_ == end_ || refuse();
    }

    [[nodiscard]] const std::string& wrong() const noexcept { return wrong_; }
    [[nodiscard]] bool is_limit() const noexcept { return is_limit_; }
    [[nodiscard]] std::size_t position() const noexcept {
        return static_cast<std::size_t>(token_ - begin_);
    }

private:
    // 0, which is valid nowhere, at the end.
    [[nodiscard]] char peek() const { return at_ == end_ ? '\0' : *at_; }
    [[nodiscard]] std::string_view rest() const { return {at_, end_}; }

    void skip_space() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) {
            ++at_;
        }
    }

    bool take(char c) {
        if (peek() != c) {
            return refuse();
        }
        ++at_;
        return true;
    }

    // ---- errors ----

    bool say(std::string wrong) {
        if (wrong.empty()) {
            return true;
        }
        wrong_ = std::move(wrong);
        return false;
    }
    bool refuse() {
        token_ = at_;
        return say(at_ == end_    ? "it is not JSON: it ends too early"
                   : *at_ == '\0' ? "it is not JSON: a byte of it is 0"
                                  : fmt::format("it is not JSON from {} on",
                                                shown(rest().substr(0, kShownBytes))));
    }

    // ---- objects and lists ----

    bool open(bool array) {
        if (depth_ == levels_.size()) {
            is_limit_ = true;
            return say(fmt::format("it is nested deeper than {} levels", kJsonDepthMax));
        }
        Level& level = levels_[depth_++];
        level.array = array;
        level.empty = true;
        level.names_begin = names_.size();
        ++at_;
        return say(handler_.open(array));
    }

    bool close(Level& level) {
        if (!level.array) {
            names_.resize(level.names_begin);
            if (!level.many.empty()) {
                level.many = {};  // clear() would keep the buckets, and visit all of them each time
            }
            level.unescaped.clear();
        }
        --depth_;
        ++at_;
        return say(handler_.close(level.array));
    }

    // Reads the next item of the open object or list, or its end.
    bool next(Level& level) {
        skip_space();
        token_ = at_;
        if (peek() == (level.array ? ']' : '}')) {
            return close(level);
        }
        if (!level.empty) {
            if (!take(',')) {
                return false;
            }
            skip_space();
        }
        level.empty = false;
        return (level.array || name(level)) && value();
    }

    bool name(Level& level) {
        token_ = at_;
        const char* const raw = at_ + 1;
        if (!take('"') || !string()) {
            return false;
        }
        // Escapes are longer than their characters.
        const bool escaped = static_cast<std::size_t>(at_ - 1 - raw) != text_.size();
        const std::string_view name = escaped
                                          ? std::string_view(level.unescaped.emplace_front(text_))
                                          : std::string_view(raw, text_.size());
        if (!is_new(level, name)) {
            return say(fmt::format("the name {} comes twice", shown(name)));
        }
        if (!say(handler_.key(text_))) {
            return false;
        }
        skip_space();
        if (!take(':')) {
            return false;
        }
        skip_space();
        return true;
    }

    bool is_new(Level& level, std::string_view name) {
        if (!level.many.empty()) {
            return level.many.insert(name).second;
        }
        const auto few = names_.begin() + static_cast<std::ptrdiff_t>(level.names_begin);
        if (std::find(few, names_.end(), name) != names_.end()) {
            return false;
        }
        if (names_.size() - level.names_begin < kComparedNamesMax) {
            names_.push_back(name);
        } else {
            level.many.insert(few, names_.end());
            level.many.insert(name);
            names_.resize(level.names_begin);
        }
        return true;
    }

    // ---- values ----

    bool value() {
        token_ = at_;
        for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
            if (handler_.takes_python() && rest().starts_with(word)) {
                return literal(word, {});
            }
        }
        switch (peek()) {
            case '{':
                return open(false);
            case '[':
                return open(true);
            case '"':
                ++at_;
                return string() && say(handler_.scalar({Kind::kString, 0, 0, &text_}));
            case 't':
                return literal("true", {Kind::kBool, 1, 0, nullptr});
            case 'f':
                return literal("false", {Kind::kBool, 0, 0, nullptr});
            case 'n':
                return literal("null", {});
            default:
                return number();
        }
    }

    bool literal(std::string_view word, const JsonScalar& value) {
        if (!rest().starts_with(word)) {
            return refuse();
        }
        at_ += word.size();
        return say(handler_.scalar(value));
    }

    bool digits() {
        if (!is_digit(peek())) {
            return refuse();
        }
        while (is_digit(peek())) {
            ++at_;
        }
        return true;
    }

    struct Whole {
        std::uint64_t value = 0;
        bool fits = true;  // while it is a whole number of 64 bits
    };

    bool number() {
        const char* const begin = at_;
        const bool negative = peek() == '-';
        at_ += negative ? 1 : 0;
        Whole whole;
        if (peek() == '0') {
            ++at_;  // no digit may follow
        } else if (!digits(whole)) {
            return false;
        }
        if ((peek() == '.' || peek() == 'e' || peek() == 'E') && !fraction(whole)) {
            return false;
        }
        JsonScalar out{Kind::kReal, 0, 0, nullptr};
        if (whole.fits && !negative) {
            out.kind = Kind::kUnsigned;
            out.number = whole.value;
        } else if (whole.fits && whole.value <= kNegativeMax) {
            out.kind = Kind::kNegative;
            out.number = 0 - whole.value;
            out.real = static_cast<double>(static_cast<std::int64_t>(out.number));
        } else if (!real({begin, at_}, out.real)) {
            return say(
                fmt::format("the number {} is beyond a double's range", shown({begin, at_})));
        }
        return say(handler_.scalar(out));
    }

    // Reads at least one digit.
    bool digits(Whole& whole) {
        const char* at = at_;
        Whole now = whole;
        for (; at != end_ && is_digit(*at); ++at) {
            const auto digit = static_cast<std::uint64_t>(*at - '0');
            now.fits = now.fits && !__builtin_mul_overflow(now.value, 10U, &now.value) &&
                       !__builtin_add_overflow(now.value, digit, &now.value);
        }
        whole = now;
        return std::exchange(at_, at) != at || refuse();
    }

    // Reads a fraction or exponent, which makes the number a real one.
    bool fraction(Whole& whole) {
        whole.fits = false;
        if (peek() == '.') {
            ++at_;
            if (!digits(whole)) {
                return false;
            }
        }
        if (peek() != 'e' && peek() != 'E') {
            return true;
        }
        ++at_;
        at_ += peek() == '+' || peek() == '-' ? 1 : 0;
        return digits(whole);
    }

    // Rounds correctly; too small a number is 0. False if the number is too large.
    static bool real(std::string_view number, double& out) {
        if (std::from_chars(number.data(), number.data() + number.size(), out).ec != std::errc()) {
            if (is_large(number)) {
                return false;
            }
            out = number.front() == '-' ? -0.0 : 0.0;
        }
        return std::isfinite(out);
    }

    // Whether a number outside a double's range, whose digits are not all 0, is above 1.
    static bool is_large(std::string_view number) {
        const std::size_t exponent_at = std::min(number.find_first_of("eE"), number.size());
        const std::size_t point = std::min(number.find('.'), exponent_at);
        const std::size_t first = number.find_first_of("123456789");
        const auto place = static_cast<std::int64_t>(point) - static_cast<std::int64_t>(first);
        if (exponent_at == number.size()) {
            return place > 0;
        }
        std::string_view power = number.substr(exponent_at + 1);
        power.remove_prefix(power.front() == '+' ? 1 : 0);
        std::int64_t exponent = 0;
        if (std::from_chars(power.data(), power.data() + power.size(), exponent).ec !=
            std::errc()) {
            return power.front() != '-';
        }
        return exponent > -place;
    }

    // ---- strings ----

    // Reads a string into text_; at_ is after the first quote, and then after the last.
    bool string() {
        text_.clear();
        while (true) {
            const char* const begin = at_;
            skip_plain();
            if (text_.empty() && text_.capacity() < static_cast<std::size_t>(at_ - begin)) {
                text_ = std::string(begin, at_);  // of that size: mostly there is no more
            } else {
                text_.append(begin, at_);
            }
            if (peek() == '"') {
                ++at_;
                return true;
            }
            if (peek() != '\\') {
                return refuse();
            }
            if (!escape()) {
                return false;
            }
        }
    }

    // Skips characters that stand for themselves.
    void skip_plain() {
        while (true) {
            at_ += plain_bytes(rest());
            const bool ascii = static_cast<unsigned char>(peek()) < 0x80;
            const std::size_t bytes = ascii ? 0 : character_bytes(rest());
            if (bytes == 0) {
                return;
            }
            at_ += bytes;
        }
    }

    bool escape() {
        constexpr std::string_view kNamed = "\"\\/bfnrt";
        constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
        ++at_;
        if (peek() == 'u') {
            return unicode_escape();
        }
        const std::size_t which = at_ == end_ ? kNamed.npos : kNamed.find(*at_);
        if (which == kNamed.npos) {
            return refuse();
        }
        text_ += kMeant[which];
        ++at_;
        return true;
    }

    // Reads an escape; at_ is at the u. Characters beyond 16 bits have two, a high and a low
    // surrogate.
    bool unicode_escape() {
        const char* const begin = at_;
        std::uint32_t code = 0;
        if (!four_digits(code)) {
            return false;
        }
        if (code >= 0xD800 && code < 0xE000) {
            std::uint32_t low = 0;
            const bool pair = code < 0xDC00 && rest().starts_with("\\u");
            at_ += pair ? 1 : 0;
            if (pair && !four_digits(low)) {
                return false;
            }
            if (low < 0xDC00 || low >= 0xE000) {
                at_ = begin;
                return refuse();
            }
            code = 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00);
        }
        append_character(text_, code);
        return true;
    }

    bool four_digits(std::uint32_t& out) {
        ++at_;
        const std::string_view digits = rest().substr(0, 4);
        const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), out, 16);
        at_ = read.ptr;
        return read.ptr == digits.data() + 4 || refuse();
    }

    const char* begin_;
    const char* at_;
    const char* end_;
    bool is_limit_ = false;
    const char* token_ = begin_;  // the last token, or the invalid text
    JsonHandler& handler_;
    std::array<Level, kJsonDepthMax> levels_;
    std::size_t depth_ = 0;
    std::vector<std::string_view> names_;  // of all open objects that have few names
    std::string text_;                     // the last string
    std::string wrong_;
};

}  // namespace

Result<void> read_json(std::string_view text, JsonHandler& handler, std::string_view operation) {
    Reader reader(text, handler);
    if (!reader.run()) {
        return reader.is_limit() || handler.is_unsupported()
                   ? unsupported(operation, reader.wrong(), reader.position())
                   : fault(operation, reader.wrong(), reader.position());
    }
    return {};
}

void append_json_string(std::string& out, std::string_view text) {
    out += '"';
    while (!text.empty()) {
        std::size_t bytes = plain_bytes(text);
        while (bytes < text.size() && static_cast<unsigned char>(text[bytes]) >= 0x80) {
            ++bytes;
        }
        out.append(text, 0, bytes);
        text.remove_prefix(bytes);
        const char next = text.empty() ? 'a' : text.front();
        if (next == '"' || next == '\\') {
            out += '\\';
            out += next;
            text.remove_prefix(1);
        } else if (next >= 0 && next < 0x20) {
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(next));
            text.remove_prefix(1);
        }
    }
    out += '"';
}

}  // namespace penstock::format
