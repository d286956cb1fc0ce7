// SPDX-License-Identifier: Apache-2.0
#include "ranks/message.hpp"

#include "base/raise.hpp"

#include <array>
#include <cstring>

namespace penstock::ranks {

namespace {

constexpr std::size_t kNumberBytes = sizeof(std::uint64_t);

[[noreturn]] void damaged() {
    base::raise(base::error(ErrorCode::kDamaged, "read message of a rank",
                            "it is not of the form that this version of Penstock writes; all ranks "
                            "need the same version"));
}

}  // namespace

MessageWriter& MessageWriter::number(std::uint64_t value) {
    std::array<char, kNumberBytes> bytes{};
    std::memcpy(bytes.data(), &value, bytes.size());
    bytes_.append(bytes.data(), bytes.size());
    return *this;
}

MessageWriter& MessageWriter::text(std::string_view value) {
    number(value.size());
    bytes_.append(value);
    return *this;
}

std::uint64_t MessageReader::number() {
    if (rest_.size() < kNumberBytes) {
        damaged();
    }
    std::uint64_t value = 0;
    std::memcpy(&value, rest_.data(), kNumberBytes);
    rest_.remove_prefix(kNumberBytes);
    return value;
}

std::string MessageReader::text() {
    const std::uint64_t bytes = number();
    if (rest_.size() < bytes) {
        damaged();
    }
    std::string value(rest_.substr(0, bytes));
    rest_.remove_prefix(bytes);
    return value;
}

void MessageReader::end() const {
    if (!rest_.empty()) {
        damaged();
    }
}

}  // namespace penstock::ranks
