// SPDX-License-Identifier: Apache-2.0
// The answer of a question about storage: figures with their formula, their inputs and the source
// of each constant. Text, derivation, Markdown and JSON are made from the same data.
#pragma once

#include <penstock/error.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock::plan {

/// A number in a formula. Units are those of Figure.
struct Input {
    std::string name;
    double value = 0;
    std::string unit;
    std::string source;  ///< "given", "default", "computed", or the publication
};

/// A number of an answer. `value` is finite.
struct Figure {
    std::string name;   ///< an identifier: "read_bytes_per_second"
    std::string label;  ///< for people: "read rate"
    double value = 0;
    /// "B", "B/s", "B/sample" (bytes; texts show them in GB and GiB), "s", "1/s", "samples/s", ""
    /// for a plain number, "share" for 0 to 1, or a noun that is counted ("files").
    std::string unit;
    /// Names of inputs, numbers, + - * / ** ( ), sqrt, min, max, ceil, floor: an expression with
    /// the same meaning as in Python. Or a text in square brackets for a longer computation:
    /// "[99th percentile of the sum, by time]".
    std::string formula;
    std::vector<Input> inputs;
};

/// A text, or a number of the unit of its column.
using Cell = std::variant<std::string, double>;

struct Column {
    std::string name;   ///< an identifier
    std::string label;  ///< for people
    std::string unit;   ///< of the numbers, as in Figure; empty for texts and plain numbers
    bool wide = false;  ///< omitted in text, which has 80 columns; Markdown and JSON have it
};

struct Table {
    std::string name;
    std::string title;
    std::vector<Column> columns;
    std::vector<std::vector<Cell>> rows;  ///< each as long as `columns`
};

/// A curve; in text it is drawn with characters.
struct Series {
    std::string name;
    std::string label;
    std::string x_label;
    std::string x_unit;
    std::string y_label;
    std::string y_unit;
    std::vector<double> x;  ///< ascending
    std::vector<double> y;  ///< the same number
};

struct Answer {
    std::string verb;   ///< "train"
    std::string title;  ///< the question in words
    std::vector<Figure> figures;
    std::vector<Table> tables;
    std::vector<Series> series;
    std::vector<std::string> notes;  ///< sentences

    /// Throws Error (kInvalidArgument) for an unknown name, with the nearest one.
    [[nodiscard]] PENSTOCK_API const Figure& at(std::string_view name) const;
};

/// Lines have at most `columns` characters if words allow it. All of these are thread-safe.
[[nodiscard]] PENSTOCK_API std::string text_of(const Answer& answer, std::size_t columns = 80);
/// The derivation: each figure with its formula, its inputs and their sources.
[[nodiscard]] PENSTOCK_API std::string explain(const Answer& answer, std::size_t columns = 80);
[[nodiscard]] PENSTOCK_API std::string markdown_of(const Answer& answer);
/// The whole answer; numbers keep every digit.
[[nodiscard]] PENSTOCK_API std::string json_of(const Answer& answer);
/// Reads the text of json_of(). Throws Error (kInvalidArgument) with the place and what was
/// expected.
[[nodiscard]] PENSTOCK_API Answer answer_of_json(std::string_view json);

/// "6.10 GB/s (5.68 GiB/s)": a number with its unit, as texts show it.
[[nodiscard]] PENSTOCK_API std::string shown(double value, std::string_view unit);

}  // namespace penstock::plan
