// SPDX-License-Identifier: Apache-2.0
#include "plan/models/config_fields.hpp"

#include "format/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock::plan {

namespace {

using format::JsonScalar;

constexpr std::string_view kReading = "read config.json";
constexpr std::size_t kFieldsMax = 10'000;
constexpr std::size_t kItemsMax = 100'000;  // of a list
constexpr std::size_t kShownBytes = 40;
constexpr double kWholeRealMax = 9'007'199'254'740'992;  // 2^53: up to there a double counts
constexpr int kKeptDepth = 3;                            // "thinker_config.text_config.hidden_size"

std::string shortened(std::string_view text) {
    return text.size() <= kShownBytes ? std::string(text)
                                      : fmt::format("{}...", text.substr(0, kShownBytes));
}

ConfigValue value_of(const JsonScalar& scalar) {
    using Kind = JsonScalar::Kind;
    ConfigValue out;
    switch (scalar.kind) {
        case Kind::kNull:
            break;
        case Kind::kBool:
            out.kind = ConfigValue::Kind::kBool;
            out.flag = scalar.number != 0;
            out.text = out.flag ? "true" : "false";
            break;
        case Kind::kUnsigned:
            out.kind = ConfigValue::Kind::kNumber;
            out.whole = true;
            out.number = scalar.number;
            out.text = fmt::format("{}", scalar.number);
            break;
        case Kind::kNegative:
        case Kind::kReal:
            out.kind = ConfigValue::Kind::kNumber;
            out.whole = scalar.real >= 0 && scalar.real <= kWholeRealMax &&
                        scalar.real == std::floor(scalar.real);
            out.number = out.whole ? static_cast<std::uint64_t>(scalar.real) : 0;
            out.text = fmt::format("{}", scalar.real);
            break;
        case Kind::kString:
            out.kind = ConfigValue::Kind::kText;
            out.text = std::move(*scalar.text);
            break;
    }
    return out;
}

// Keeps scalars and lists of scalars, as deep as kKeptDepth. A list or object further down is
// passed over.
class FieldHandler final : public format::JsonHandler {
public:
    std::map<std::string, ConfigValue, std::less<>> values;

    [[nodiscard]] bool takes_python() const override { return true; }
    std::string key(std::string& name) override {
        if (depth_ <= kKeptDepth && lists_ == 0) {
            names_.resize(static_cast<std::size_t>(depth_));
            names_.back() = std::move(name);
        }
        return {};
    }
    std::string open(bool array) override {
        if (depth_ == 0 && array) {
            return "it is a list, not an object of fields";
        }
        if (array) {
            if (lists_++ == 0 && is_kept()) {
                list_ = &put(
                    ConfigValue{ConfigValue::Kind::kList, false, false, 0, "a list", {}, {}, {}});
            } else {
                note_odd("a list");
                list_ = nullptr;  // a list of lists is nothing that is asked for
            }
        } else {
            if (depth_ > 0 && lists_ == 0 && is_kept()) {
                put(ConfigValue{
                    ConfigValue::Kind::kOther, false, false, 0, "an object", {}, {}, {}});
            }
            note_odd("an object");
            ++depth_;
            list_ = nullptr;
        }
        return full();
    }
    std::string close(bool array) override {
        list_ = nullptr;
        (array ? lists_ : depth_) -= 1;
        return {};
    }
    std::string scalar(const JsonScalar& scalar) override {
        if (depth_ == 0) {
            return "it is one value, not an object of fields";
        }
        if (lists_ == 0) {
            if (is_kept()) {
                put(value_of(scalar));
            }
            return full();
        }
        if (list_ == nullptr) {
            return {};
        }
        if (++items_ > kItemsMax) {
            return fmt::format("its lists have more than {} items", kItemsMax);
        }
        ConfigValue item = value_of(scalar);
        if (item.kind == ConfigValue::Kind::kNumber && item.whole) {
            list_->numbers.push_back(item.number);
        } else if (item.kind == ConfigValue::Kind::kText) {
            list_->texts.push_back(std::move(item.text));
        } else {
            note_odd(item.kind == ConfigValue::Kind::kNull ? "null" : item.text);
        }
        return {};
    }

private:
    [[nodiscard]] bool is_kept() const { return depth_ <= kKeptDepth && lists_ <= 1; }
    [[nodiscard]] std::string full() const {
        return values.size() <= kFieldsMax ? std::string()
                                           : fmt::format("it has more than {} fields", kFieldsMax);
    }
    // An item of the open list.
    void note_odd(const std::string& item) {
        if (list_ != nullptr && list_->odd.empty()) {
            list_->odd = item;
        }
    }
    ConfigValue& put(ConfigValue value) {
        std::string path;
        for (const std::string& name : names_) {
            path += path.empty() ? name : "." + name;
        }
        return values[path] = std::move(value);
    }

    int depth_ = 0;  // open objects
    int lists_ = 0;  // open lists
    std::size_t items_ = 0;
    std::vector<std::string> names_;
    ConfigValue* list_ = nullptr;
};

std::string as_shown(const ConfigValue& value) {
    return value.kind == ConfigValue::Kind::kText
               ? fmt::format("the text \"{}\"", shortened(value.text))
               : shortened(value.text);
}

}  // namespace

base::Result<ConfigFields> ConfigFields::parse(std::string_view json) {
    if (json.size() > kConfigBytesMax) {
        return base::fail(base::error(ErrorCode::kInvalidArgument, kReading,
                                      fmt::format("config.json has {} bytes; expected {} at most",
                                                  json.size(), kConfigBytesMax)));
    }
    FieldHandler handler;
    PENSTOCK_CHECK(format::read_json(json, handler, kReading));
    ConfigFields out;
    out.values_ = std::move(handler.values);
    return out;
}

std::optional<ConfigFields> ConfigFields::part(std::string_view name) const {
    ConfigFields out;
    const std::string prefix = std::string(name) + ".";
    for (auto at = values_.lower_bound(prefix);
         at != values_.end() && at->first.starts_with(prefix); ++at) {
        out.values_.emplace(at->first.substr(prefix.size()), at->second);
    }
    if (out.values_.empty()) {
        return std::nullopt;
    }
    out.prefix_ = prefix_ + prefix;
    out.type_ = type_;
    return out;
}

const ConfigValue* ConfigFields::find(std::string_view name) const {
    const auto at = values_.find(name);
    return at == values_.end() || at->second.kind == ConfigValue::Kind::kNull ? nullptr
                                                                              : &at->second;
}

std::uint64_t ConfigFields::anywhere(std::span<const std::string_view> names) const {
    const auto depth_of = [](const std::string& path) {
        return std::count(path.begin(), path.end(), '.');
    };
    const std::pair<const std::string, ConfigValue>* found = nullptr;
    for (const auto& one : values_) {
        const std::string_view name = std::string_view(one.first).substr(one.first.rfind('.') + 1);
        if (one.second.whole && std::find(names.begin(), names.end(), name) != names.end() &&
            (found == nullptr || depth_of(one.first) < depth_of(found->first))) {
            found = &one;
        }
    }
    return found == nullptr ? 0 : found->second.number;
}

bool ConfigFields::is_null(std::string_view name) const {
    const auto at = values_.find(name);
    return at != values_.end() && at->second.kind == ConfigValue::Kind::kNull;
}

std::optional<std::uint64_t> ConfigFields::stated(std::string_view names, std::uint64_t fallback,
                                                  std::uint64_t least, std::uint64_t most) {
    while (!names.empty()) {
        const std::string_view name = names.substr(0, names.find('|'));
        names.remove_prefix(std::min(name.size() + 1, names.size()));
        const ConfigValue* value = find(name);
        if (value == nullptr) {
            continue;
        }
        if (value->kind == ConfigValue::Kind::kNumber && value->whole && value->number >= least &&
            value->number <= most) {
            return value->number;
        }
        refuse(fmt::format("{}{} is {}; expected a whole number from {} to {}", prefix_, name,
                           as_shown(*value), least, most));
        return fallback;
    }
    return std::nullopt;
}

std::uint64_t ConfigFields::dimension(std::string_view names, std::uint64_t fallback,
                                      std::uint64_t least, std::uint64_t most) {
    const auto value = stated(names, fallback, least, most);
    if (!value) {
        assume(fmt::format("{}{} is not in the file; {} was assumed, transformers' default for {}",
                           prefix_, names.substr(0, names.find('|')), fallback, type_));
    }
    return value.value_or(fallback);
}

std::uint64_t ConfigFields::derived(std::string_view names, std::uint64_t fallback,
                                    std::uint64_t least) {
    return stated(names, fallback, least, kDimensionMax).value_or(fallback);
}

bool ConfigFields::flag(std::string_view name, bool fallback) {
    const ConfigValue* value = find(name);
    if (value == nullptr) {
        return fallback;
    }
    if (value->kind != ConfigValue::Kind::kBool) {
        refuse(fmt::format("{}{} is {}; expected true or false", prefix_, name, as_shown(*value)));
        return fallback;
    }
    return value->flag;
}

std::string ConfigFields::text(std::string_view name, std::string_view fallback) {
    const ConfigValue* value = find(name);
    if (value == nullptr) {
        return std::string(fallback);
    }
    if (value->kind != ConfigValue::Kind::kText) {
        refuse(fmt::format("{}{} is {}; expected a text", prefix_, name, as_shown(*value)));
        return std::string(fallback);
    }
    return value->text;
}

std::vector<std::uint64_t> ConfigFields::whole_numbers(std::string_view name) {
    const ConfigValue* value = find(name);
    if (value == nullptr) {
        return {};
    }
    if (value->kind != ConfigValue::Kind::kList || !value->texts.empty() || !value->odd.empty()) {
        refuse(fmt::format("{}{} is {}; expected a list of whole numbers", prefix_, name,
                           value->kind != ConfigValue::Kind::kList ? as_shown(*value)
                           : !value->texts.empty()                 ? "a list with texts"
                                                   : "a list with " + shortened(value->odd)));
        return {};
    }
    return value->numbers;
}

void ConfigFields::assume(std::string line) {
    if (std::find(assumed_.begin(), assumed_.end(), line) == assumed_.end()) {
        assumed_.push_back(std::move(line));
    }
}

void ConfigFields::refuse(std::string message) {
    if (wrong_.empty()) {
        wrong_ = std::move(message);
    }
}

void ConfigFields::absorb(const ConfigFields& other) {
    assumed_.insert(assumed_.end(), other.assumed_.begin(), other.assumed_.end());
    if (!other.wrong_.empty()) {
        refuse(other.wrong_);
    }
}

}  // namespace penstock::plan
