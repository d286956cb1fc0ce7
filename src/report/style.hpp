// SPDX-License-Identifier: Apache-2.0
// The looks of text on a terminal: colours, small bars, lines that fit.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace penstock::report {

enum class Colour { kNone, kBold, kGreen, kYellow, kRed };

class Style {
public:
    /// Colours and wraps only where `out` is a terminal. Without colours where NO_COLOR is set to
    /// anything or TERM is "dumb".
    explicit Style(std::FILE* out);

    [[nodiscard]] std::string paint(Colour colour, std::string text) const;

    /// Breaks `text` at spaces so that lines fit the terminal, `indent` columns before each but the
    /// first, which begins there already.
    [[nodiscard]] std::string wrap(std::string_view text, std::size_t indent) const;

private:
    bool colours_;
    std::size_t columns_;  ///< 0: no terminal
};

/// The width of bars in tables.
inline constexpr std::size_t kBarColumns = 4;

/// A bar of `width` columns that is filled to `share` (0 to 1), in eighths of a column; padded.
[[nodiscard]] std::string bar(double share, std::size_t width);

/// Green above 1, red below it, no colour where the interval of a ratio contains 1.
[[nodiscard]] Colour colour_of_ratio(double low, double high);

/// `text` in lines of at most `columns`, broken at spaces: what is left of an indented line goes on
/// below its last column of text, that of another at the beginning of the next line. Commands of an
/// example, and words that are longer, stay whole.
[[nodiscard]] std::string fitted(std::string_view text, std::size_t columns);

/// The columns of a terminal, 80 where they are unknown.
[[nodiscard]] std::size_t columns_of(std::FILE* out);

}  // namespace penstock::report
