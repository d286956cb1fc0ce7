// SPDX-License-Identifier: Apache-2.0
// Takes the arguments of codes from the bytes of a pickle, none past their end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace penstock::format {

class PickleInput {
public:
    explicit PickleInput(std::span<const std::byte> bytes) : bytes_(bytes) {}

    /// Whether something was wanted past the end.
    [[nodiscard]] bool cut_short() const { return cut_short_; }

protected:
    [[nodiscard]] std::uint64_t at() const { return at_; }

    std::optional<std::string_view> take(std::uint64_t count) {
        if (count > bytes_.size() - at_) {
            cut_short_ = true;
            return std::nullopt;
        }
        const char* p = reinterpret_cast<const char*>(bytes_.data()) + at_;
        at_ += count;
        return std::string_view(p, count);
    }
    std::optional<std::uint64_t> number(int bytes) {
        const auto text = take(static_cast<std::uint64_t>(bytes));
        if (!text) {
            return std::nullopt;
        }
        std::uint64_t value = 0;
        for (int i = 0; i < bytes; ++i) {
            value |= static_cast<std::uint64_t>(
                         static_cast<unsigned char>((*text)[static_cast<std::size_t>(i)]))
                     << (8 * i);
        }
        return value;
    }
    // Reads a length of so many bytes, then the text.
    std::optional<std::string_view> counted(int bytes) {
        const auto count = number(bytes);
        return count ? take(*count) : std::nullopt;
    }
    std::optional<std::string_view> line(std::size_t bytes_max = SIZE_MAX) {
        std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_,
                              bytes_.size() - at_);
        rest = rest.substr(0, bytes_max);
        const std::size_t end = rest.find('\n');
        if (end == std::string_view::npos) {
            cut_short_ = rest.size() < bytes_max;
            return std::nullopt;
        }
        at_ += end + 1;
        return rest.substr(0, end);
    }

private:
    std::span<const std::byte> bytes_;
    std::uint64_t at_ = 0;
    bool cut_short_ = false;
};

}  // namespace penstock::format
