// SPDX-License-Identifier: Apache-2.0
// A JSON reader for small documents from files that may be hostile. Values are passed to a handler
// as they are read, so that only the handler builds objects; nesting is limited, names in one
// object may not repeat, numbers keep the text's value.
#pragma once

#include "format/fault.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::format {

inline constexpr int kJsonDepthMax = 32;

/// A value that is not an object or array.
struct JsonScalar {
    enum class Kind : std::uint8_t { kNull, kBool, kUnsigned, kNegative, kReal, kString };
    Kind kind = Kind::kNull;
    std::uint64_t number = 0;     ///< kUnsigned, kBool; kNegative: its two's complement
    double real = 0;              ///< kReal, kNegative
    std::string* text = nullptr;  ///< kString; may be moved from
};

/// Each call returns an empty string, or the error; then the reading ends.
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
    /// Whether NaN, Infinity and -Infinity, which Python's json writes, are taken, as null. They
    /// are no JSON, and occur in the configurations of models.
    [[nodiscard]] virtual bool takes_python() const { return false; }
    /// Whether the error is of something that is not read, and not of bytes that break a rule.
    [[nodiscard]] bool is_unsupported() const { return unsupported_; }

protected:
    std::string not_read(std::string why) {
        unsupported_ = true;
        return why;
    }

private:
    bool unsupported_ = false;
};

/// Errors have the offset, in bytes from the beginning of the text, and `operation`.
[[nodiscard]] Result<void> read_json(std::string_view text, JsonHandler& handler,
                                     std::string_view operation);

/// A string with its quotes. `text` is UTF-8.
void append_json_string(std::string& out, std::string_view text);

}  // namespace penstock::format
