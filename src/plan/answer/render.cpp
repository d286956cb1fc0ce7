// SPDX-License-Identifier: Apache-2.0
// An answer as text of a terminal, as a derivation and as Markdown.
#include "plan/amount.hpp"
#include "plan/answer/picture.hpp"

#include <penstock/plan_model.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::size_t kIndent = 2;
constexpr std::size_t kColumnsMin = 40;

// Characters of UTF-8, as many as columns here: the texts of answers have no wide ones.
std::size_t width_of(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    }));
}

std::string padded(std::string_view text, std::size_t width, bool right) {
    const std::size_t own = width_of(text);
    const std::string space(width > own ? width - own : 0, ' ');
    return right ? space + std::string(text) : std::string(text) + space;
}

// Breaks at spaces; `indent` columns before each line, the first too.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent) {
    std::string out;
    std::size_t used = 0;
    while (!text.empty()) {
        const std::size_t space = text.find(' ');
        const std::string_view word = text.substr(0, space);
        text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
        const std::size_t width = width_of(word);
        if (used == 0 || used + 1 + width > columns) {
            out += out.empty() ? "" : "\n";
            out.append(indent, ' ');
            used = indent;
        } else {
            out += ' ';
            ++used;
        }
        out += word;
        used += width;
    }
    return out + "\n";
}

std::string without_trailing_spaces(std::string line) {
    while (line.ends_with(' ')) {
        line.pop_back();
    }
    return line;
}

std::string cell_text(const Cell& cell, const Column& column) {
    if (const auto* number = std::get_if<double>(&cell)) {
        const std::string text = in_two_bases(*number, column.unit).decimal;
        // The heading of the column has the noun that is counted.
        const bool scaled = column.unit.starts_with('B') || column.unit == "s" ||
                            column.unit == "share" || column.unit.empty();
        return scaled ? text : number_text(*number);
    }
    return std::get<std::string>(cell);
}

bool is_number(const Table& table, std::size_t column) {
    return std::any_of(table.rows.begin(), table.rows.end(), [&](const std::vector<Cell>& row) {
        return std::holds_alternative<double>(row[column]);
    });
}

std::string table_text(const Table& table, std::size_t columns) {
    std::vector<std::size_t> shown_columns;
    std::vector<std::size_t> widths(table.columns.size());
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
        if (!table.columns[i].wide) {
            shown_columns.push_back(i);
            widths[i] = width_of(table.columns[i].label);
            for (const std::vector<Cell>& row : table.rows) {
                widths[i] = std::max(widths[i], width_of(cell_text(row[i], table.columns[i])));
            }
        }
    }
    std::size_t needed = kIndent + 2 * shown_columns.size();
    for (const std::size_t width : widths) {
        needed += width;
    }
    const std::string gap(needed <= columns + 2 ? 2 : 1, ' ');
    const auto line = [&](const auto& text_at) {
        std::string out(kIndent, ' ');
        for (const std::size_t i : shown_columns) {
            out += padded(text_at(i), widths[i], is_number(table, i)) + gap;
        }
        return without_trailing_spaces(out) + "\n";
    };
    std::string out = table.title.empty() ? "" : fmt::format("  {}\n\n", table.title);
    out += line([&](std::size_t i) { return table.columns[i].label; });
    for (const std::vector<Cell>& row : table.rows) {
        out += line([&](std::size_t i) { return cell_text(row[i], table.columns[i]); });
    }
    return out;
}

// Labels, decimal and binary in a column each.
std::string figures_text(const Answer& answer) {
    std::array<std::size_t, 2> widths{};
    for (const Figure& figure : answer.figures) {
        widths[0] = std::max(widths[0], width_of(figure.label));
        widths[1] = std::max(widths[1], width_of(in_two_bases(figure.value, figure.unit).decimal));
    }
    std::string out;
    for (const Figure& figure : answer.figures) {
        const InTwoBases text = in_two_bases(figure.value, figure.unit);
        out += without_trailing_spaces(
                   fmt::format("  {}  {}  {}", padded(figure.label, widths[0], false),
                               padded(text.decimal, widths[1], false), text.binary)) +
               "\n";
    }
    return out;
}

constexpr std::string_view kGivenText = "given";

std::string source_of(const Input& input) {
    return input.source.empty() ? std::string(kGivenText) : input.source;
}

std::string cell_of_markdown(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '|' || c == '\\') {
            out += '\\';
        }
        out += c == '\n' ? ' ' : c;
    }
    return out;
}

std::string row_of_markdown(const std::vector<std::string>& cells) {
    std::string out = "|";
    for (const std::string& cell : cells) {
        out += fmt::format(" {} |", cell_of_markdown(cell));
    }
    return out + "\n";
}

std::string table_of_markdown(const Table& table) {
    std::vector<std::string> cells;
    std::string rule = "|";
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
        cells.push_back(table.columns[i].label);
        rule += is_number(table, i) ? "---:|" : "---|";
    }
    std::string out = table.title.empty() ? "" : fmt::format("\n{}\n\n", table.title);
    out += row_of_markdown(cells) + rule + "\n";
    for (const std::vector<Cell>& row : table.rows) {
        cells.clear();
        for (std::size_t i = 0; i < row.size(); ++i) {
            cells.push_back(cell_text(row[i], table.columns[i]));
        }
        out += row_of_markdown(cells);
    }
    return out;
}

}  // namespace

std::string text_of(const Answer& answer, std::size_t columns) {
    columns = std::max(columns, kColumnsMin);
    std::string out = wrapped(answer.title, columns, 0);
    if (!answer.figures.empty()) {
        out += "\n" + figures_text(answer);
    }
    for (const Table& table : answer.tables) {
        out += "\n" + table_text(table, columns);
    }
    for (const Series& series : answer.series) {
        out += "\n" + picture_of(series, columns);
    }
    for (const std::string& note : answer.notes) {
        out += "\n" + wrapped(note, columns, kIndent);
    }
    return out;
}

std::string explain(const Answer& answer, std::size_t columns) {
    columns = std::max(columns, kColumnsMin);
    std::string out = wrapped(answer.title, columns, 0);
    for (const Figure& figure : answer.figures) {
        out +=
            "\n" + wrapped(fmt::format("{} = {}", figure.name, figure.formula), columns, kIndent);
        std::size_t names = 0;
        std::size_t values = 0;
        for (const Input& input : figure.inputs) {
            names = std::max(names, width_of(input.name));
            values = std::max(values, width_of(shown(input.value, input.unit)));
        }
        for (const Input& input : figure.inputs) {
            const std::string head =
                fmt::format("    {}  {}  ", padded(input.name, names, false),
                            padded(shown(input.value, input.unit), values, false));
            const std::string source = source_of(input);
            if (width_of(head) + width_of(source) <= columns) {
                out += without_trailing_spaces(head + source) + "\n";
            } else {
                out += without_trailing_spaces(head) + "\n" + wrapped(source, columns, 8);
            }
        }
        out += fmt::format("    = {}\n", shown(figure.value, figure.unit));
    }
    for (const Table& table : answer.tables) {
        out += "\n" + table_text(table, columns);
        for (std::size_t i = 0; i < table.columns.size(); ++i) {
            // Sources are too long for a row.
            for (const std::vector<Cell>& row : table.rows) {
                if (table.columns[i].wide) {
                    out += wrapped(fmt::format("{}, {}: {}", cell_text(row[0], table.columns[0]),
                                               row.size() > 1 ? cell_text(row[1], table.columns[1])
                                                              : std::string(),
                                               cell_text(row[i], table.columns[i])),
                                   columns, kIndent);
                }
            }
        }
    }
    for (const std::string& note : answer.notes) {
        out += "\n" + wrapped(note, columns, kIndent);
    }
    return out;
}

std::string markdown_of(const Answer& answer) {
    std::string out = fmt::format("### {}\n", cell_of_markdown(answer.title));
    if (!answer.figures.empty()) {
        out += "\n| figure | value | formula | inputs |\n|---|---:|---|---|\n";
        for (const Figure& figure : answer.figures) {
            std::string inputs;
            for (const Input& input : figure.inputs) {
                inputs += fmt::format("{}{} = {} ({})", inputs.empty() ? "" : "; ", input.name,
                                      shown(input.value, input.unit), source_of(input));
            }
            out += row_of_markdown({figure.label, shown(figure.value, figure.unit),
                                    fmt::format("`{} = {}`", figure.name, figure.formula), inputs});
        }
    }
    for (const Table& table : answer.tables) {
        out += table_of_markdown(table);
    }
    for (const Series& series : answer.series) {
        out += fmt::format("\n```text\n{}```\n", picture_of(series, 80));
    }
    for (const std::string& note : answer.notes) {
        out += fmt::format("\n{}\n", note);
    }
    return out;
}

}  // namespace penstock::plan
