// SPDX-License-Identifier: Apache-2.0
#include "format/shard_index.hpp"

#include "format/json.hpp"
#include "format/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory_resource>
#include <unordered_set>

namespace penstock::format {

namespace {

constexpr std::string_view kReading = "read index of shards";
constexpr std::string_view kWriting = "write index of shards";
constexpr std::string_view kMarkKey = "penstock.index";
constexpr std::size_t kShardTagDigits = 8;
constexpr std::size_t kShardNumberDigits = 5;  // at least

// Accepts names in the folder of the index, and none that leads elsewhere.
bool is_plain_name(std::string_view name) {
    return !name.empty() && name != "." && name != ".." &&
           name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
           is_utf8(name);
}

class Handler final : public JsonHandler {
public:
    ShardIndex index;
    bool has_map = false;

    [[nodiscard]] bool takes_python() const override { return true; }
    std::string key(std::string& name) override {
        if (depth_ == 1) {
            section_ = std::move(name);
        } else if (depth_ == 2 && section_ == "weight_map") {
            index.weight_map.emplace_back(std::move(name), "");
        } else if (depth_ == 2) {
            field_ = std::move(name);
        }
        return {};
    }
    std::string open(bool array) override {
        ++depth_;
        if (depth_ == 1 && array) {
            return not_read("it is a list, not an object");
        }
        if (section_ == "weight_map" && (depth_ > 2 || array)) {
            return not_read("weight_map is not an object of tensor names and file names");
        }
        has_map = has_map || (depth_ == 2 && section_ == "weight_map");
        return {};
    }
    std::string close(bool /*array*/) override {
        --depth_;
        return {};
    }
    std::string scalar(const JsonScalar& value) override {
        using Kind = JsonScalar::Kind;
        if (depth_ == 2 && section_ == "weight_map") {
            auto& [tensor, file] = index.weight_map.back();
            if (value.kind != Kind::kString || !is_plain_name(*value.text)) {
                return not_read(fmt::format(
                    "tensor {}: {} is not the name of a file in the index's own folder",
                    shown(tensor), value.kind == Kind::kString ? shown(*value.text) : "a number"));
            }
            file = std::move(*value.text);
        } else if (depth_ == 2 && section_ == "metadata" && field_ == kMarkKey) {
            index.mark = value.kind == Kind::kString ? std::move(*value.text) : std::string();
        } else if (depth_ == 2 && section_ == "metadata" && field_ == "total_size") {
            // Some writers give it as a real number. It is only a hint.
            if (value.kind == Kind::kUnsigned) {
                index.total_bytes = value.number;
            } else if (value.kind == Kind::kReal && value.real >= 0 && value.real < 1e15) {
                index.total_bytes = static_cast<std::uint64_t>(value.real);
            }
        } else if (depth_ == 0 || (depth_ == 1 && section_ == "weight_map")) {
            return not_read("it is not an object with a weight_map");
        }
        return {};
    }

private:
    int depth_ = 0;
    std::string section_;
    std::string field_;
};

}  // namespace

Result<ShardIndex> parse_shard_index(std::string_view json) {
    if (json.size() > kShardIndexBytesMax) {
        return unsupported(kReading, fmt::format("it has {} bytes; no more than {} are read",
                                                 json.size(), kShardIndexBytesMax));
    }
    const std::size_t first = json.find_first_not_of(" \t\r\n");
    if (first != std::string_view::npos && json[first] != '{') {
        return unsupported(kReading, "it does not begin as an index of safetensors shards does");
    }
    Handler handler;
    PENSTOCK_CHECK(read_json(json, handler, kReading));
    if (!handler.has_map) {
        return unsupported(kReading,
                           "it is JSON with no weight_map: no index of safetensors shards");
    }
    return std::move(handler.index);
}

Result<std::string> render_shard_index(const ShardIndex& index) {
    std::string out = "{\n  \"metadata\": {";
    if (index.total_bytes) {
        out += fmt::format("\n    \"total_size\": {}", *index.total_bytes);
    }
    if (!index.mark.empty()) {
        out += fmt::format("{}\n    \"{}\": ", index.total_bytes ? "," : "", kMarkKey);
        append_json_string(out, index.mark);
    }
    out += index.total_bytes || !index.mark.empty() ? "\n  " : "";
    out += "},\n  \"weight_map\": {";
    std::pmr::monotonic_buffer_resource nodes;
    std::pmr::unordered_set<std::string_view> names(&nodes);
    names.reserve(index.weight_map.size());
    for (const auto& [tensor, file] : index.weight_map) {
        if (!is_utf8(tensor) || !is_plain_name(file) || !names.insert(tensor).second) {
            return fault(kWriting, fmt::format("tensor {} in {}: the names are UTF-8, a tensor "
                                               "comes once, and a file lies in the same folder",
                                               shown(tensor), shown(file)));
        }
        out += names.size() == 1 ? "\n    " : ",\n    ";
        append_json_string(out, tensor);
        out += ": ";
        append_json_string(out, file);
    }
    out += names.empty() ? "}\n}\n" : "\n  }\n}\n";
    return out;
}

std::string shard_name(std::string_view stem, std::string_view tag, std::uint64_t number,
                       std::uint64_t count) {
    return fmt::format("{}{}{}-{:05}-of-{:05}.safetensors", stem, tag.empty() ? "" : ".", tag,
                       number, count);
}

bool is_shard_name(std::string_view name, std::string_view stem) {
    const auto take = [&name](std::string_view text) {
        const bool begins = name.starts_with(text);
        name.remove_prefix(begins ? text.size() : 0);
        return begins;
    };
    const auto take_digits = [&name](std::string_view digits) {
        const std::size_t count = std::min(name.find_first_not_of(digits), name.size());
        name.remove_prefix(count);
        return count;
    };
    constexpr std::string_view kDecimal = "0123456789";
    return take(stem) && (!take(".") || take_digits("0123456789abcdef") == kShardTagDigits) &&
           take("-") && take_digits(kDecimal) >= kShardNumberDigits && take("-of-") &&
           take_digits(kDecimal) >= kShardNumberDigits && name == ".safetensors";
}

}  // namespace penstock::format
