// SPDX-License-Identifier: Apache-2.0
// The fields of a message between ranks: numbers of 64 bits and texts, in their order. A message
// that does not have what its reader expects is an error, never a guess.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::ranks {

class MessageWriter {
public:
    MessageWriter& number(std::uint64_t value);
    MessageWriter& text(std::string_view value);
    [[nodiscard]] std::string take() { return std::move(bytes_); }

private:
    std::string bytes_;
};

/// Throws kDamaged for a message that is cut short or longer than what was read.
class MessageReader {
public:
    /// The bytes outlive it.
    explicit MessageReader(std::string_view bytes) : rest_(bytes) {}
    [[nodiscard]] std::uint64_t number();
    [[nodiscard]] std::string text();
    /// The rest, not read yet: the content of an envelope.
    [[nodiscard]] std::string_view rest() const { return rest_; }
    /// Throws unless all was read.
    void end() const;

private:
    std::string_view rest_;
};

}  // namespace penstock::ranks
