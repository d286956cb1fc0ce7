// SPDX-License-Identifier: Apache-2.0
#include "cli/style.hpp"

#include "base/environment.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace penstock::cli {

namespace {

constexpr std::array<const char*, 5> kCodes{"", "1", "32", "33", "31"};
constexpr std::array<const char*, 9> kEighths{" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};

}  // namespace

std::size_t columns_of(std::FILE* out) {
    constexpr std::size_t kUsual = 80;
    constexpr std::size_t kLeast = 20;
    winsize size{};
    const bool known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > kLeast;
    return known ? size.ws_col : kUsual;
}

Style::Style(std::FILE* out)
    : colours_(::isatty(::fileno(out)) == 1),
      columns_(colours_ ? std::min<std::size_t>(columns_of(out), 100) : 0) {
    colours_ = colours_ && !base::system_environment_text("NO_COLOR") &&
               base::system_environment_text("TERM") != "dumb";
}

std::string Style::paint(Colour colour, std::string text) const {
    if (!colours_ || colour == Colour::kNone) {
        return text;
    }
    return fmt::format("\033[{}m{}\033[0m", kCodes[static_cast<std::size_t>(colour)], text);
}

std::string Style::wrap(std::string_view text, std::size_t indent) const {
    if (columns_ <= 2 * indent) {
        return std::string(text);
    }
    const std::size_t room = columns_ - indent;
    std::string lines;
    while (text.size() > room) {
        // A word that is longer than a line stays whole.
        std::size_t end = text.rfind(' ', room);
        end = end == std::string_view::npos ? text.find(' ', room) : end;
        if (end == std::string_view::npos) {
            break;
        }
        lines += fmt::format("{}\n{:{}}", text.substr(0, end), "", indent);
        text.remove_prefix(end + 1);
    }
    return lines.append(text);
}

std::string bar(double share, std::size_t width) {
    const double most = 8 * static_cast<double>(width);
    auto eighths = static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * most));
    std::string text;
    for (std::size_t i = 0; i < width; ++i) {
        const std::size_t here = std::min<std::size_t>(eighths, 8);
        text += kEighths[here];
        eighths -= here;
    }
    return text;
}

Colour colour_of_ratio(double low, double high) {
    if (low > 1) {
        return Colour::kGreen;
    }
    return high < 1 ? Colour::kRed : Colour::kNone;
}

}  // namespace penstock::cli
