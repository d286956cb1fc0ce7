// SPDX-License-Identifier: Apache-2.0
#include "report/style.hpp"

#include "base/environment.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace penstock::report {

namespace {

constexpr std::array<const char*, 5> kCodes{"", "1", "32", "33", "31"};
constexpr std::array<const char*, 9> kEighths{" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};

constexpr std::size_t kExplanationIndent = 4;

// The column at which the rest of a line goes on: that of its last part, after two spaces or more.
std::size_t hanging_indent(std::string_view line, std::size_t columns) {
    const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
    const std::size_t gap = line.find("  ", begin);
    const std::size_t last = gap == std::string_view::npos ? gap : line.find_first_not_of(' ', gap);
    constexpr std::size_t kRoomMin = 20;
    return begin == 0 || last == std::string_view::npos || last + kRoomMin > columns ? begin : last;
}

bool is_command(std::string_view line) {
    const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
    return begin > 0 && line.substr(begin).starts_with("penstock ") &&
           line.find("  ", begin) == std::string_view::npos;
}

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

std::string fitted(std::string_view text, std::size_t columns) {
    std::string out;
    std::string carried;  // of the line before, when it is not indented
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view here = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        const bool goes_on = !here.empty() && here.front() != ' ' && !here.starts_with("Usage:");
        if (!carried.empty() && !goes_on) {
            out += carried + '\n';
            carried.clear();
        }
        std::string line = carried.empty() ? std::string(here) : carried + ' ' + std::string(here);
        carried.clear();
        std::size_t indent = hanging_indent(line, columns);
        if (const std::size_t gap = line.find("  ", indent);
            line.size() > columns && gap != std::string::npos && is_command(line.substr(0, gap))) {
            out += line.substr(0, gap) + '\n';  // there is no room for what it does next to it
            indent += kExplanationIndent;
            line.replace(0, line.find_first_not_of(' ', gap), indent, ' ');
        }
        bool broken = false;
        while (line.size() > columns && !is_command(line)) {
            const std::size_t space = line.rfind(' ', columns);
            if (space == std::string::npos || space <= indent) {
                break;
            }
            out += line.substr(0, space) + '\n';
            line.replace(0, space + 1, indent, ' ');
            broken = true;
        }
        if (broken && indent == 0) {
            carried = line;
        } else {
            out += line + '\n';
        }
    }
    return carried.empty() ? out : out + carried + '\n';
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

}  // namespace penstock::report
