// SPDX-License-Identifier: Apache-2.0
#include "store/manifest/metadata.hpp"

#include "base/raise.hpp"
#include "base/text/near.hpp"
#include "format/fault.hpp"
#include "format/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <vector>

namespace penstock::store {

namespace {

using format::shown;

void check_utf8(std::string_view name, std::string_view text) {
    if (!format::is_utf8(text)) {
        refuse_save(
            fmt::format("the metadata {} is not UTF-8: {}; give UTF-8", shown(name), shown(text)));
    }
}

std::string text_of(double number) {
    if (std::isnan(number)) {
        return "nan";
    }
    if (std::isinf(number)) {
        return number > 0 ? "inf" : "-inf";
    }
    std::string digits = fmt::format("{}", number);
    digits += digits.find_first_of(".e") == std::string::npos ? ".0" : "";
    return digits;
}

}  // namespace

void refuse_save(std::string_view why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint", why));
}

CheckpointMetadata metadata_of(const SaveOptions& options, const State& state) {
    CheckpointMetadata out = options.metadata;
    for (const auto& [name, text] : state.metadata) {
        out.emplace_back(name, text);
    }
    std::unordered_set<std::string_view> names;
    for (const auto& [name, value] : out) {
        check_utf8(name, name);
        if (name == kStoreKey) {
            refuse_save(
                fmt::format("the metadata {} is a name that the manifest itself uses; give "
                            "another name",
                            shown(name)));
        }
        if (const auto* const text = std::get_if<std::string>(&value)) {
            check_utf8(name, *text);
        }
        if (!names.insert(name).second) {
            refuse_save(
                fmt::format("the metadata {} comes twice; give each name once", shown(name)));
        }
    }
    if (const std::size_t bytes = bytes_of(out); bytes > kMetadataBytesMax) {
        refuse_save(
            fmt::format("the metadata has {} bytes of names and texts, and {} are the most; "
                        "save what is large in the state",
                        bytes, kMetadataBytesMax));
    }
    return out;
}

std::size_t bytes_of(const CheckpointMetadata& metadata) {
    std::size_t bytes = 0;
    for (const auto& [name, value] : metadata) {
        const auto* const text = std::get_if<std::string>(&value);
        bytes += name.size() + (text == nullptr ? 0 : text->size());
    }
    return bytes;
}

std::string text_of(const MetadataValue& value) {
    if (const auto* const text = std::get_if<std::string>(&value)) {
        return *text;
    }
    if (const auto* const number = std::get_if<double>(&value)) {
        return text_of(*number);
    }
    if (const auto* const integer = std::get_if<std::int64_t>(&value)) {
        return fmt::format("{}", *integer);
    }
    const auto* const flag = std::get_if<bool>(&value);
    return flag == nullptr ? "null" : *flag ? "true" : "false";
}

std::string number_json(const MetadataValue& value) {
    const auto* const number = std::get_if<double>(&value);
    const std::string text = text_of(value);
    return number != nullptr && !std::isfinite(*number) ? fmt::format("[\"{}\"]", text) : text;
}

std::optional<double> special_number(std::string_view name) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (name == "nan") {
        return std::numeric_limits<double>::quiet_NaN();
    }
    return name == "inf"    ? std::optional(kInfinity)
           : name == "-inf" ? std::optional(-kInfinity)
                            : std::nullopt;
}

std::optional<double> number_in(const CheckpointMetadata& metadata, std::string_view name) {
    for (const auto& [key, value] : metadata) {
        if (key != name) {
            continue;
        }
        if (const auto* const integer = std::get_if<std::int64_t>(&value)) {
            return static_cast<double>(*integer);
        }
        const auto* const number = std::get_if<double>(&value);
        return number == nullptr || std::isnan(*number) ? std::nullopt : std::optional(*number);
    }
    return std::nullopt;
}

std::string likely_name(std::span<const CheckpointInfo> checkpoints, std::string_view name) {
    std::vector<std::string_view> names;
    for (const CheckpointInfo& info : checkpoints) {
        for (const auto& [key, value] : info.metadata) {
            if (key == name) {
                return {};
            }
            names.emplace_back(key);
        }
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return std::string(base::nearest(name, names));
}

}  // namespace penstock::store
