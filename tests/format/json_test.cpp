// SPDX-License-Identifier: Apache-2.0
#include "format/json.hpp"

#include "format/support.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

namespace penstock::format {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;  // NOLINT(google-build-using-namespace)
using Kind = JsonScalar::Kind;
using Events = std::vector<std::string>;

std::string shown_scalar(const JsonScalar& value) {
    if (value.kind == Kind::kString) {
        return fmt::format("'{}'", *value.text);
    }
    return fmt::format("{}:{}:{:x}", static_cast<int>(value.kind), value.number,
                       std::bit_cast<std::uint64_t>(value.real));
}

class Recorder final : public JsonHandler {
public:
    Events events;
    bool python = false;
    std::string refused;  // the event that the handler does not want

    [[nodiscard]] bool takes_python() const override { return python; }
    std::string key(std::string& name) override { return add("key " + std::move(name)); }
    std::string scalar(const JsonScalar& value) override { return add(shown_scalar(value)); }
    std::string open(bool array) override { return add(array ? "[" : "{"); }
    std::string close(bool array) override { return add(array ? "]" : "}"); }

private:
    std::string add(std::string event) {
        events.push_back(std::move(event));
        return events.back() == refused ? "the handler does not want " + refused : "";
    }
};

struct Outcome {
    bool accepted = false;
    Events events;
    bool operator==(const Outcome&) const = default;
};

TEST(Json, NumbersThatOnlyPythonHasAreNullWhereTheyAreTaken) {
    for (const bool python : {true, false}) {
        for (const char* text : {"NaN", "[1,Infinity]", R"({"a":-Infinity})"}) {
            Recorder recorder;
            recorder.python = python;
            EXPECT_EQ(read_json(text, recorder, "read").has_value(), python) << text;
        }
    }
    for (const char* text : {"-NaN", "Inf", "Infinityy", "[-Infinit]", "{NaN:1}"}) {
        Recorder recorder;
        recorder.python = true;
        EXPECT_FALSE(read_json(text, recorder, "read")) << text;
    }
}

Outcome ours(std::string_view text) {
    Recorder recorder;
    const bool accepted = read_json(text, recorder, "read").has_value();
    return {accepted, std::move(recorder.events)};
}

// nlohmann's reader under our rules: nesting, names that come twice.
class Peer final : public nlohmann::json_sax<nlohmann::json> {
public:
    Recorder recorder;

    bool null() override { return scalar({}); }
    bool boolean(bool value) override { return scalar({Kind::kBool, value ? 1U : 0U, 0, nullptr}); }
    bool number_integer(std::int64_t value) override {
        return scalar({Kind::kNegative, static_cast<std::uint64_t>(value),
                       static_cast<double>(value), nullptr});
    }
    bool number_unsigned(std::uint64_t value) override {
        return scalar({Kind::kUnsigned, value, 0, nullptr});
    }
    bool number_float(double value, const std::string& /*text*/) override {
        return scalar({Kind::kReal, 0, value, nullptr});
    }
    bool string(std::string& value) override { return scalar({Kind::kString, 0, 0, &value}); }
    bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }
    bool start_object(std::size_t /*elements*/) override { return open(false); }
    bool start_array(std::size_t /*elements*/) override { return open(true); }
    bool key(std::string& name) override {
        return names_.back().insert(name).second && recorder.key(name).empty();
    }
    bool end_object() override { return close(false); }
    bool end_array() override { return close(true); }
    bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                     const nlohmann::detail::exception& /*e*/) override {
        return false;
    }

private:
    bool scalar(const JsonScalar& value) { return recorder.scalar(value).empty(); }
    bool open(bool array) {
        names_.emplace_back();
        return names_.size() <= kJsonDepthMax && recorder.open(array).empty();
    }
    bool close(bool array) {
        names_.pop_back();
        return recorder.close(array).empty();
    }

    std::vector<std::set<std::string>> names_;
};

Outcome of_peer(std::string_view text) {
    Peer peer;
    const bool accepted = nlohmann::json::sax_parse(text.begin(), text.end(), &peer);
    return {accepted, std::move(peer.recorder.events)};
}

// Documents with every form that the grammar has.
class RandomJson {
public:
    explicit RandomJson(std::uint64_t seed) : random_(seed) {}

    std::string make() {
        space();
        value(0);
        space();
        return std::move(out_);
    }

private:
    template <std::size_t kCount>
    std::string_view one_of(const std::array<std::string_view, kCount>& rows) {
        return rows[below(random_, kCount)];
    }

    void space() {
        while (below(random_, 4) == 0) {
            out_ += " \t\r\n"[below(random_, 4)];
        }
    }

    void value(int depth) {
        const std::uint64_t which = below(random_, depth < 5 ? 10 : 6);
        if (which < 2) {
            out_ += one_of(std::array<std::string_view, 3>{"null", "true", "false"});
        } else if (which < 4) {
            number();
        } else if (which < 6) {
            string("");
        } else {
            items(depth, which < 8);
        }
    }

    void items(int depth, bool array) {
        // Some have more names than are compared one by one.
        const std::uint64_t count = below(random_, below(random_, 8) == 0 ? 40 : 4);
        out_ += array ? '[' : '{';
        space();
        for (std::uint64_t i = 0; i < count; ++i) {
            if (i > 0) {
                out_ += ',';
                space();
            }
            if (!array) {
                string(below(random_, 400) == 0 ? "" : std::to_string(i));
                space();
                out_ += ':';
                space();
            }
            value(depth + 1);
            space();
        }
        out_ += array ? ']' : '}';
    }

    void number() {
        static constexpr std::array<std::string_view, 20> kEdges{"0",
                                                                 "-0",
                                                                 "-0.0",
                                                                 "0e5",
                                                                 "1E400",
                                                                 "-1e999999999999999999999",
                                                                 "1e-400",
                                                                 "-0.1e-99999",
                                                                 "0.0e99999999999999999999",
                                                                 "18446744073709551615",
                                                                 "18446744073709551616",
                                                                 "-9223372036854775808",
                                                                 "-9223372036854775809",
                                                                 "9223372036854775808",
                                                                 "2.2250738585072011e-308",
                                                                 "4.9406564584124654e-324",
                                                                 "2.4703282292062327e-324",
                                                                 "1.7976931348623157e308",
                                                                 "1.7976931348623159e308",
                                                                 "9007199254740993.0"};
        switch (below(random_, 5)) {
            case 0:
                out_ += one_of(kEdges);
                break;
            case 1:
                out_ += std::to_string(static_cast<std::int64_t>(random_() >> below(random_, 64)));
                break;
            case 2:
                out_ += std::to_string(random_() >> below(random_, 64));
                break;
            case 3: {
                const auto real = std::bit_cast<double>(random_());
                out_ += std::isfinite(real) ? fmt::format("{}", real) : "1.5";
                break;
            }
            default:
                // Up to 800 digits: doubles are rounded by hand from 19 on.
                digits(below(random_, 20) == 0 ? 800 : 25);
                out_ += '.';
                digits(below(random_, 20) == 0 ? 800 : 25);
                out_ += one_of(std::array<std::string_view, 4>{"", "e+", "E-", "e"});
                if (!is_digit(out_.back())) {
                    out_ += std::to_string(below(random_, 400));
                }
        }
    }

    static bool is_digit(char c) { return c >= '0' && c <= '9'; }

    void digits(std::uint64_t most) {
        out_ += static_cast<char>('1' + below(random_, 9));
        for (std::uint64_t left = below(random_, most); left > 0; --left) {
            out_ += static_cast<char>('0' + below(random_, 10));
        }
    }

    void string(std::string_view head) {
        out_ += '"';
        out_ += head;
        for (std::uint64_t left = below(random_, 20); left > 0; --left) {
            switch (below(random_, 8)) {
                case 0:
                    out_ += one_of(std::array<std::string_view, 8>{"\\\"", "\\\\", "\\/", "\\b",
                                                                   "\\f", "\\n", "\\r", "\\t"});
                    break;
                case 1:
                    out_ += fmt::format("\\u{:04x}", below(random_, 0xD800));
                    break;
                case 2:
                    out_ += fmt::format("\\u{:04X}\\u{:04X}", 0xD800 + below(random_, 0x400),
                                        0xDC00 + below(random_, 0x400));
                    break;
                case 3:
                    out_ += one_of(std::array<std::string_view, 8>{
                        "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                        "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"});
                    break;
                default:
                    out_ += "layers.0.weight /_~\x7F"[below(random_, 20)];
            }
        }
        out_ += '"';
    }

    Random random_;
    std::string out_;
};

void mutate(Random& random, std::string& text) {
    static constexpr std::string_view kBytes =
        "\"\\{}[]:,+-.eEu0129tfn/ \n\x1F\x7F\x80\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xED\xEF\xF0\xF4"
        "\xF5\xFF";
    for (std::uint64_t left = 1 + below(random, 3); left > 0 && !text.empty(); --left) {
        const std::size_t at = below(random, text.size());
        switch (below(random, 5)) {
            case 0:
                text.erase(at, 1 + below(random, 3));
                break;
            case 1:
                text.insert(at, 1, kBytes[below(random, kBytes.size())]);
                break;
            case 2:
                text.insert(at, text.substr(below(random, text.size()), below(random, 12)));
                break;
            case 3:
                text.resize(at);
                break;
            default:
                text[at] = below(random, 2) == 0 ? kBytes[below(random, kBytes.size())]
                                                 : static_cast<char>(random());
        }
    }
}

// Except for a byte 0, which nlohmann takes for the end.
TEST(Json, RandomDocumentsAndDamagedOnesAreReadAsNlohmannReadsThem) {
    int accepted = 0;
    int refused = 0;
    for (std::uint64_t seed = 0; seed < 1500; ++seed) {
        SCOPED_TRACE(seed);
        std::string text = RandomJson(seed).make();
        const Outcome whole = ours(text);
        ASSERT_EQ(whole, of_peer(text)) << text;
        Random random(seed);
        for (int i = 0; i < 12; ++i) {
            std::string damaged = text;
            mutate(random, damaged);
            if (damaged.find('\0') != std::string::npos) {
                ASSERT_FALSE(ours(damaged).accepted) << damaged;
                continue;
            }
            const Outcome outcome = ours(damaged);
            ASSERT_EQ(outcome, of_peer(damaged)) << damaged;
            ++(outcome.accepted ? accepted : refused);
        }
    }
    EXPECT_GT(accepted, 500);
    EXPECT_GT(refused, 5'000);
}

TEST(Json, EveryStringOfThreeBytesIsUtf8AsNlohmannHasIt) {
    // The second and third from where the rules change.
    static constexpr std::array<unsigned char, 11> kEdges{0x22, 0x41, 0x7F, 0x80, 0x8F, 0x90,
                                                          0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
    for (unsigned first = 1; first < 256; ++first) {
        for (const unsigned char second : kEdges) {
            for (const unsigned char third : kEdges) {
                for (const unsigned char fourth : kEdges) {
                    const std::string text{'"',
                                           static_cast<char>(first),
                                           static_cast<char>(second),
                                           static_cast<char>(third),
                                           static_cast<char>(fourth),
                                           '"'};
                    ASSERT_EQ(ours(text), of_peer(text)) << escaped(text);
                }
            }
        }
    }
}

TEST(Json, HandlerSeesWhatTheTextHasInItsOrder) {
    EXPECT_THAT(ours(R"( {"a": [1, -2, 0.5, "x\u00e9\ud83d\ude00\n"], "b": {}, "": null} )").events,
                ElementsAre("{", "key a", "[", "2:1:0", "3:18446744073709551614:c000000000000000",
                            "4:0:3fe0000000000000", "'x\u00e9\U0001F600\n'", "]", "key b", "{", "}",
                            "key ", "0:0:0", "}"));
    EXPECT_THAT(ours("\xEF\xBB\xBF[true,false]").events, ElementsAre("[", "1:1:0", "1:0:0", "]"));
}

TEST(Json, ErrorsSayWhatAndWhere) {
    struct Row {
        std::string text;
        std::uint64_t offset;
        std::string what;
    };
    const std::string deep(kJsonDepthMax, '[');
    const std::vector<Row> rows{
        {"", 0, "it ends too early"},
        {"[1, ", 4, "it ends too early"},
        {"\"abc", 4, "it ends too early"},
        {"[1, x]", 4, "it is not JSON from 'x]' on"},
        {"[1 2]", 3, "it is not JSON from '2]' on"},
        {"[1,]", 3, "it is not JSON from ']' on"},
        {R"({"a":1,})", 7, "it is not JSON from '}' on"},
        {R"({"a" 1})", 5, "it is not JSON from '1}' on"},
        {"{a:1}", 1, "it is not JSON from 'a:1}' on"},
        {"[1]]", 3, "it is not JSON from ']' on"},
        {"[01]", 2, "it is not JSON from '1]' on"},
        {"[1.]", 3, "it is not JSON from ']' on"},
        {"[.5]", 1, "it is not JSON from '.5]' on"},
        {"[+1]", 1, "it is not JSON from '+1]' on"},
        {"[nul]", 1, "it is not JSON from 'nul]' on"},
        {"\"a\tb\"", 2, "it is not JSON from '\\x09b\"' on"},
        {R"("\x")", 2, "it is not JSON from 'x\"' on"},
        {R"("\u12g4")", 5, "it is not JSON from 'g4\"' on"},
        {R"("\ud800")", 2, "it is not JSON from 'ud800\"' on"},
        {R"("\udc00\ud800")", 2, "it is not JSON from 'udc00\\ud800\"' on"},
        {R"("\ud800\u0041")", 2, "it is not JSON from 'ud800\\u0041\"' on"},
        {"\"ab\xC0\xAF\"", 3, "it is not JSON from '\\xc0\\xaf\"' on"},
        {"[1,2]" + std::string(1, '\0'), 5, "a byte of it is 0"},
        {std::string("\"a\0b\"", 5), 2, "a byte of it is 0"},
        {"[1, 1e400]", 4, "'1e400' is beyond a double's range"},
        {R"({"a": 1, "b": 2, "\u0061": 3})", 17, "the name 'a' comes twice"},
        {deep + "[", kJsonDepthMax, "it is nested deeper than 32 levels"},
        {std::string(1'000'000, '['), kJsonDepthMax, "it is nested deeper than 32 levels"},
        {R"([1, "no"])", 4, "the handler does not want 'no'"},
        {R"([{"no": 1}])", 2, "the handler does not want key no"},
    };
    for (const Row& row : rows) {
        Recorder recorder;
        recorder.refused = row.what.ends_with("key no") ? "key no" : "'no'";
        const auto result = read_json(row.text, recorder, "read it");
        ASSERT_FALSE(result) << escaped(row.text.substr(0, 100));
        EXPECT_THAT(result.error().message, HasSubstr(row.what));
        EXPECT_EQ(result.error().offset, row.offset) << row.what;
        EXPECT_EQ(result.error().operation, "read it");
    }
    EXPECT_TRUE(ours(deep + std::string(kJsonDepthMax, ']')).accepted);
}

std::string object_of(std::size_t names, std::string_view last) {
    std::string text = "{";
    for (std::size_t i = 0; i < names; ++i) {
        text += fmt::format("\"n\\u0061me{}\":{{}},", i);
    }
    return text + fmt::format("\"{}\":0}}", last);
}

TEST(Json, NameThatComesTwiceIsFoundHoweverManyThereAre) {
    for (const std::size_t names : {1U, 2U, 15U, 16U, 17U, 18U, 1000U}) {
        EXPECT_TRUE(ours(object_of(names, "name")).accepted) << names;
        EXPECT_FALSE(ours(object_of(names, "name0")).accepted) << names;
        const std::string last = fmt::format("name{}", names - 1);
        EXPECT_FALSE(ours(object_of(names, last)).accepted) << names;
        const std::string one = object_of(names, "x");
        EXPECT_TRUE(ours(fmt::format("[{0},{0},{{\"x\":{0},\"y\":{0}}}]", one)).accepted)
            << "the names of one object are not those of another";
    }
}

TEST(Json, StringsThatAreWrittenAreReadBack) {
    std::string every;
    for (int c = 0; c < 0x80; ++c) {
        every += static_cast<char>(c);
    }
    for (const std::string& text :
         {every, std::string(), "\u00e9\u20ac\U0001F600 a\n\u00e9\"" + every, std::string(3, '"'),
          std::string(100, 'x') + "\\"}) {
        std::string json;
        append_json_string(json, text);
        EXPECT_THAT(ours(json).events, ElementsAre("'" + text + "'"));
    }
}

}  // namespace
}  // namespace penstock::format
