// SPDX-License-Identifier: Apache-2.0
#include "api/options_file.hpp"

#include "api/options.hpp"
#include "base/raise.hpp"
#include "base/units.hpp"

#include <penstock/options.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock::api {

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kKiB = 1 << 10;
constexpr std::size_t kTextMax = std::size_t{1} << 20;  // an options file has a few lines

struct Number {
    const char* key;
    std::uint64_t min;
    std::uint64_t max;
    std::uint64_t step;
    bool is_size;  // takes words such as "4MiB" too
    void (*set)(EngineOptions&, std::uint64_t);
};

template <auto kMember>
void set_member(EngineOptions& options, std::uint64_t value) {
    auto& member = options.*kMember;
    member = static_cast<std::remove_reference_t<decltype(member)>>(value);
}

constexpr std::array<Number, 8> kNumbers{{
    {"block_bytes", 64 * kKiB, std::uint64_t{1} << 30, 64 * kKiB, true,
     set_member<&EngineOptions::block_bytes>},
    {"queue_depth", 1, 4096, 1, false, set_member<&EngineOptions::queue_depth>},
    {"in_flight_bytes", 4096, kAny, 1, true, set_member<&EngineOptions::in_flight_bytes>},
    {"channels", 1, 64, 1, false, set_member<&EngineOptions::channels>},
    {"copy_threads", 1, 64, 1, false, set_member<&EngineOptions::copy_threads>},
    {"inline_bytes_max", 0, kAny, 1, true, set_member<&EngineOptions::inline_bytes_max>},
    {"transfers_max", 0, UINT32_MAX, 1, false, set_member<&EngineOptions::transfers_max>},
    {"background_bytes", 4096, kAny, 1, true, set_member<&EngineOptions::background_bytes>},
}};

constexpr std::array<std::pair<const char*, BackendKind>, 6> kBackends{{
    {"auto", BackendKind::kAuto},
    {"uring", BackendKind::kUring},
    {"io_uring", BackendKind::kUring},
    {"aio", BackendKind::kAio},
    {"libaio", BackendKind::kAio},
    {"posix", BackendKind::kPosix},
}};

base::Failure wrong(const std::string& name, const std::string& what) {
    return base::fail(base::error(ErrorCode::kInvalidArgument, "options",
                                  fmt::format("options file {}: {}", name, what), name));
}

// What came, as it stands in the file, cut to a length that fits into a message.
std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 60) {
        text = text.substr(0, 57) + "...";
    }
    return text;
}

std::string known_keys() {
    std::vector<std::string> keys{"about", "backend"};
    for (const Number& number : kNumbers) {
        keys.emplace_back(number.key);
    }
    return fmt::format("{}", fmt::join(keys, ", "));
}

std::string allowed(const Number& number) {
    std::string text = number.max >= kAny
                           ? fmt::format("an integer from {} on", number.min)
                           : fmt::format("an integer from {} to {}", number.min, number.max);
    if (number.step > 1) {
        text = fmt::format("a multiple of {} from {} to {}", number.step, number.min, number.max);
    }
    return text + (number.is_size ? R"(, or a size such as "4MiB")" : "");
}

base::Result<void> take_number(const Number& number, const Json& value, const std::string& name,
                               EngineOptions& options) {
    std::uint64_t given = 0;
    bool right = value.is_number_unsigned();
    if (right) {
        given = value.get<std::uint64_t>();
    } else if (number.is_size && value.is_string()) {
        const auto bytes = base::parse_bytes(value.get_ref<const std::string&>());
        right = bytes.has_value();
        given = right ? *bytes : 0;
    }
    if (!right || given < number.min || given > number.max || given % number.step != 0) {
        return wrong(name, fmt::format("\"{}\" is {}; it takes {}", number.key, shown(value),
                                       allowed(number)));
    }
    number.set(options, given);
    return {};
}

base::Result<void> take(const std::string& key, const Json& value, const std::string& name,
                        EngineOptions& options) {
    if (key == "about") {
        if (!value.is_string()) {
            return wrong(name, fmt::format("\"about\" is {}; it takes a text", shown(value)));
        }
        return {};
    }
    if (key == "backend") {
        for (const auto& [word, kind] : kBackends) {
            if (value.is_string() && value.get_ref<const std::string&>() == word) {
                options.backend = kind;
                return {};
            }
        }
        return wrong(name, fmt::format(R"("backend" is {}; it takes "auto", "uring", "aio" or )"
                                       R"("posix")",
                                       shown(value)));
    }
    for (const Number& number : kNumbers) {
        if (key == number.key) {
            return take_number(number, value, name, options);
        }
    }
    return wrong(
        name, fmt::format("there is no option {}; there are {}", shown(Json(key)), known_keys()));
}

// Remembers keys that come twice, of which the parser keeps the last without a word, and leaves out
// what is nested deeply, which would overflow the stack of whoever prints it.
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
    // The engine has the last word.
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
