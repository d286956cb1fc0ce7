// SPDX-License-Identifier: Apache-2.0
#include "api/options_file.hpp"

#include "api/option_table.hpp"
#include "api/options.hpp"
#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "format/json.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::api {

namespace {

using format::JsonScalar;
using Kind = JsonScalar::Kind;

constexpr std::size_t kTextMax = std::size_t{1} << 20;  // an options file has a few lines
constexpr std::size_t kShownMax = 60;
constexpr const char* kAdvice = "give the file that penstock tune -o FILE writes";

base::Failure wrong(const std::string& name, const std::string& what) {
    return base::fail(base::error(ErrorCode::kInvalidArgument, "options",
                                  fmt::format("options file {}: {}", name, what), name));
}

// A text with its quotes, cut to a length that fits into a message.
std::string in_quotes(std::string_view text) {
    std::string out;
    format::append_json_string(out, text);
    if (out.size() > kShownMax) {
        std::size_t end = kShownMax;
        while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xC0U) == 0x80U) {
            --end;  // inside a character
        }
        out = out.substr(0, end) + "...";
    }
    return out;
}

// The value as it is in the file.
std::string shown(const JsonScalar& value) {
    switch (value.kind) {
        case Kind::kNull:
            break;
        case Kind::kBool:
            return value.number != 0 ? "true" : "false";
        case Kind::kUnsigned:
            return fmt::to_string(value.number);
        case Kind::kNegative:
        case Kind::kReal:
            return fmt::to_string(value.real);
        case Kind::kString:
            return in_quotes(*value.text);
    }
    return "null";
}

std::string known_keys() {
    std::vector<std::string> keys{"about"};
    for (const WordOption& option : kWordOptions) {
        keys.emplace_back(option.name);
    }
    for (const Option& option : kOptions) {
        keys.emplace_back(option.name);
    }
    return fmt::format("{}", fmt::join(keys, ", "));
}

// Changes the options as the values are read. Each call returns what is wrong.
class Taker final : public format::JsonHandler {
public:
    explicit Taker(EngineOptions& options) : options_(options) {}
    /// Empty: the text was wrong before a value was.
    [[nodiscard]] const std::string& refused() const { return refused_; }

    std::string key(std::string& name) override {
        key_ = name;
        return {};
    }
    std::string scalar(const JsonScalar& value) override { return refuse(take(value)); }
    std::string open(bool array) override {
        const char* const what = array ? "a list" : "an object";
        if (!open_ && array) {
            return refuse(not_an_object(what));
        }
        if (open_) {
            return refuse(fmt::format("{}: got {}; it takes a number or a text", key_, what));
        }
        open_ = true;
        return {};
    }
    std::string close(bool /*array*/) override { return {}; }

private:
    std::string refuse(std::string why) { return refused_ = std::move(why); }
    static std::string not_an_object(std::string_view what) {
        return fmt::format("it holds {}; it takes an object: {{\"block_bytes\": 1048576, ...}}",
                           what);
    }

    std::string take(const JsonScalar& value) {
        if (!open_) {
            return not_an_object(shown(value));
        }
        if (key_ == "about") {
            return value.kind == Kind::kString
                       ? std::string()
                       : fmt::format("about: got {}; expected a text", shown(value));
        }
        for (const WordOption& option : kWordOptions) {
            if (key_ == option.name) {
                const bool taken = value.kind == Kind::kString && option.set(options_, *value.text);
                return taken ? std::string()
                             : fmt::format("{}: got {}; expected {}", option.name, shown(value),
                                           option.allowed);
            }
        }
        for (const Option& option : kOptions) {
            if (key_ == option.name) {
                return take_number(option, value);
            }
        }
        return fmt::format("there is no option {}; there are {}", in_quotes(key_), known_keys());
    }

    std::string take_number(const Option& option, const JsonScalar& value) {
        std::optional<std::uint64_t> given;
        if (value.kind == Kind::kUnsigned) {
            given = value.number;
        } else if (option.is_size() && value.kind == Kind::kString) {
            if (const auto bytes = base::parse_bytes(*value.text)) {
                given = *bytes;
            }
        }
        if (!given || !option.takes(*given)) {
            return fmt::format("{}: got {}; expected {}{}", option.name, shown(value),
                               option.allowed(), option.is_size() ? "" : ", as an integer");
        }
        option.set(options_, *given);
        return {};
    }

    EngineOptions& options_;
    bool open_ = false;
    std::string key_;
    std::string refused_;
};

base::Result<std::string> text_of(const std::string& path) {
    const auto close = [](std::FILE* file) { std::fclose(file); };
    const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "re"), close);
    if (!file) {
        return base::fail(base::system_error(errno, "options", path));
    }
    std::string text(kTextMax + 1, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file.get()));
    if (std::ferror(file.get()) != 0) {
        return base::fail(base::system_error(errno, "options", path));
    }
    return text;
}

base::Result<EngineOptions> load(const std::string& path) {
    PENSTOCK_TRY(base, options_from_environment());
    PENSTOCK_TRY(text, text_of(path));
    return parse_options(text, path, base);
}

}  // namespace

base::Result<EngineOptions> parse_options(std::string_view text, const std::string& name,
                                          EngineOptions base) {
    if (text.size() > kTextMax) {
        return wrong(name, fmt::format("it has more than 1 MiB; {}", kAdvice));
    }
    Taker taker(base);
    if (const auto read = format::read_json(text, taker, "options"); !read) {
        return wrong(name, taker.refused().empty()
                               ? fmt::format("{}; {}", read.error().message, kAdvice)
                               : taker.refused());
    }
    // The engine checks the final options.
    if (const auto core = core_options(base); !core) {
        return wrong(name, core.error().message);
    }
    return base;
}

}  // namespace penstock::api

namespace penstock {

EngineOptions load_options(const std::string& path) {
    return base::unwrap(api::load(path));
}

}  // namespace penstock
