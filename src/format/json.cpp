// SPDX-License-Identifier: Apache-2.0
#include "format/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

namespace penstock::format {

namespace {

using Json = nlohmann::json;

// nlohmann's reader keeps one bit a level and checks UTF-8; the rest is checked here.
class Sax final : public nlohmann::json_sax<Json> {
public:
    explicit Sax(JsonHandler& handler) : handler_(handler) {}

    [[nodiscard]] const std::string& wrong() const noexcept { return wrong_; }
    [[nodiscard]] std::size_t position() const noexcept { return position_; }

    bool null() override { return scalar({JsonScalar::Kind::kNull, 0, 0, nullptr}); }
    bool boolean(bool value) override {
        return scalar({JsonScalar::Kind::kBool, value ? 1U : 0U, 0, nullptr});
    }
    bool number_integer(std::int64_t value) override {
        return scalar({JsonScalar::Kind::kNegative, static_cast<std::uint64_t>(value),
                       static_cast<double>(value), nullptr});
    }
    bool number_unsigned(std::uint64_t value) override {
        return scalar({JsonScalar::Kind::kUnsigned, value, 0, nullptr});
    }
    bool number_float(double value, const std::string& /*text*/) override {
        return scalar({JsonScalar::Kind::kReal, 0, value, nullptr});
    }
    bool string(std::string& value) override {
        return scalar({JsonScalar::Kind::kString, 0, 0, &value});
    }
    bool binary(Json::binary_t& /*value*/) override { return say("it holds binary data"); }
    bool start_object(std::size_t /*elements*/) override {
        names_.emplace_back();
        return deeper() && say(handler_.open(false));
    }
    bool key(std::string& name) override {
        if (!names_.back().insert(name).second) {
            return say(fmt::format("the name {} comes twice", shown(name)));
        }
        return say(handler_.key(name));
    }
    bool end_object() override {
        names_.pop_back();
        --depth_;
        return say(handler_.close(false));
    }
    bool start_array(std::size_t /*elements*/) override {
        return deeper() && say(handler_.open(true));
    }
    bool end_array() override {
        --depth_;
        return say(handler_.close(true));
    }
    bool parse_error(std::size_t position, const std::string& token,
                     const nlohmann::detail::exception& /*e*/) override {
        position_ = position;
        return say(fmt::format("it is not JSON from {} on", shown(token)));
    }

private:
    bool say(std::string wrong) {
        wrong_ = std::move(wrong);
        return wrong_.empty();
    }
    bool scalar(const JsonScalar& value) { return say(handler_.scalar(value)); }
    bool deeper() {
        return ++depth_ <= kJsonDepthMax ||
               say(fmt::format("it is nested deeper than {} levels", kJsonDepthMax));
    }

    JsonHandler& handler_;
    std::vector<std::unordered_set<std::string>> names_;
    int depth_ = 0;
    std::string wrong_;
    std::size_t position_ = 0;
};

}  // namespace

Result<void> read_json(std::string_view text, JsonHandler& handler, std::string_view operation) {
    // No JSON has one, and the parser takes it for the end.
    if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
        return fault(operation, "it is not JSON: a byte of it is 0", nul);
    }
    Sax sax(handler);
    if (!Json::sax_parse(text.begin(), text.end(), &sax) || !sax.wrong().empty()) {
        return fault(operation, sax.wrong(), sax.position() > 0 ? sax.position() : kNoOffset);
    }
    return {};
}

void append_json_string(std::string& out, std::string_view text) {
    const auto is_special = [](char c) {
        return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
    };
    out += '"';
    while (!text.empty()) {
        const auto special = std::find_if(text.begin(), text.end(), is_special);
        out.append(text.begin(), special);
        if (special == text.end()) {
            break;
        }
        if (*special == '"' || *special == '\\') {
            out += '\\';
            out += *special;
        } else {
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(*special));
        }
        text.remove_prefix(static_cast<std::size_t>(special - text.begin()) + 1);
    }
    out += '"';
}

}  // namespace penstock::format
