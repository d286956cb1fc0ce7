// SPDX-License-Identifier: Apache-2.0
#include "api/options_file.hpp"

#include "api/option_table.hpp"
#include "api/options.hpp"
#include "base/raise.hpp"
#include "base/units.hpp"

#include <penstock/options.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::api {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kTextMax = std::size_t{1} << 20;  // an options file has a few lines

base::Failure wrong(const std::string& name, const std::string& what) {
    return base::fail(base::error(ErrorCode::kInvalidArgument, "options",
                                  fmt::format("options file {}: {}", name, what), name));
}

// The value as it is in the file, cut to a length that fits into a message.
std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 60) {
        text = text.substr(0, 57) + "...";
    }
    return text;
}

std::string known_keys() {
    std::vector<std::string> keys{"about", "backend"};
    for (const Option& option : kOptions) {
        keys.emplace_back(option.name);
    }
    return fmt::format("{}", fmt::join(keys, ", "));
}

base::Result<void> take_number(const Option& option, const Json& value, const std::string& name,
                               EngineOptions& options) {
    std::optional<std::uint64_t> given;
    if (value.is_number_unsigned()) {
        given = value.get<std::uint64_t>();
    } else if (option.is_size() && value.is_string()) {
        if (const auto bytes = base::parse_bytes(value.get_ref<const std::string&>())) {
            given = *bytes;
        }
    }
    if (!given || !option.takes(*given)) {
        return wrong(name,
                     fmt::format("{}: got {}; expected {}{}", option.name, shown(value),
                                 option.allowed(), option.is_size() ? "" : ", as an integer"));
    }
    option.set(options, *given);
    return {};
}

base::Result<void> take(const std::string& key, const Json& value, const std::string& name,
                        EngineOptions& options) {
    if (key == "about") {
        if (!value.is_string()) {
            return wrong(name, fmt::format("about: got {}; expected a text", shown(value)));
        }
        return {};
    }
    if (key == "backend") {
        const auto kind = value.is_string() ? backend_named(value.get_ref<const std::string&>())
                                            : std::optional<BackendKind>();
        if (!kind) {
            return wrong(
                name, fmt::format("backend: got {}; expected {}", shown(value), kBackendsAllowed));
        }
        options.backend = *kind;
        return {};
    }
    for (const Option& option : kOptions) {
        if (key == option.name) {
            return take_number(option, value, name, options);
        }
    }
    return wrong(
        name, fmt::format("there is no option {}; there are {}", shown(Json(key)), known_keys()));
}

// Records duplicate keys, of which the parser silently keeps the last, and drops deeply nested
// values, which would overflow the stack when they are printed.
struct Watch {
    static constexpr int kDepthMax = 4;
    std::set<std::string> seen;
    std::string twice;
    bool deep = false;

    bool operator()(int depth, Json::parse_event_t event, Json& value) {
        if (depth > kDepthMax) {
            deep = true;
            return false;
        }
        if (depth == 1 && event == Json::parse_event_t::key) {
            const auto& key = value.get_ref<const std::string&>();
            twice = seen.insert(key).second ? twice : key;
        }
        return true;
    }
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
        return wrong(name,
                     "it is larger than 1 MiB, so it is none; give the file that penstock "
                     "tune -o FILE writes");
    }
    Json json;
    Watch watch;
    try {
        json = Json::parse(text, std::ref(watch));
    } catch (const Json::exception& error) {
        return wrong(name, fmt::format("it is not JSON ({}); give the file that penstock tune -o "
                                       "FILE writes",
                                       error.what()));
    }
    if (watch.deep) {
        return wrong(name,
                     "lists or objects are nested in it; it takes one object of numbers and "
                     "texts");
    }
    if (!json.is_object()) {
        return wrong(name, fmt::format("it holds {}; it takes an object: {{\"block_bytes\": "
                                       "1048576, ...}}",
                                       shown(json)));
    }
    if (!watch.twice.empty()) {
        return wrong(name, fmt::format("{} is there twice", shown(Json(watch.twice))));
    }
    for (const auto& [key, value] : json.items()) {
        PENSTOCK_CHECK(take(key, value, name, base));
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
