// SPDX-License-Identifier: Apache-2.0
// JSON as the formats have it: small documents from files that may be hostile. What is read is
// given to a handler as it comes, so nothing is built that the handler does not build; nesting is
// limited, names in one object may not repeat, numbers are kept as the text says.
#pragma once

#include "format/fault.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::format {

inline constexpr int kJsonDepthMax = 32;

/// A value that is neither object nor array.
struct JsonScalar {
    enum class Kind : std::uint8_t { kNull, kBool, kUnsigned, kNegative, kReal, kString };
    Kind kind = Kind::kNull;
    std::uint64_t number = 0;     ///< kUnsigned, kBool; kNegative: its two's complement
    double real = 0;              ///< kReal, kNegative
    std::string* text = nullptr;  ///< kString; may be moved from
};

/// Each call returns an empty string, or what is wrong; then the reading ends.
class JsonHandler {
public:
    JsonHandler() = default;
    JsonHandler(const JsonHandler&) = delete;
    JsonHandler& operator=(const JsonHandler&) = delete;
    virtual ~JsonHandler() = default;
    virtual std::string key(std::string& name) = 0;
    virtual std::string scalar(const JsonScalar& value) = 0;
    virtual std::string open(bool array) = 0;
    virtual std::string close(bool array) = 0;
};

/// Errors say where, in bytes from the beginning of the text, as `operation`.
[[nodiscard]] Result<void> read_json(std::string_view text, JsonHandler& handler,
                                     std::string_view operation);

/// A string with its quotes. `text` is UTF-8.
void append_json_string(std::string& out, std::string_view text);

}  // namespace penstock::format
