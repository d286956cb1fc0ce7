// SPDX-License-Identifier: Apache-2.0
// An answer as JSON and back.
#include "format/json.hpp"
#include "plan/amount.hpp"
#include "plan/json_tree.hpp"

#include <penstock/plan_model.hpp>

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::string_view kReading = "read answer";

class Writer {
public:
    [[nodiscard]] std::string take() { return std::move(out_); }

    void open(char bracket) {
        comma();
        out_ += bracket;
        first_ = true;
    }
    void close(char bracket) {
        out_ += bracket;
        first_ = false;
    }
    void key(std::string_view name) {
        comma();
        format::append_json_string(out_, name);
        out_ += ": ";
        first_ = true;
    }
    void text(std::string_view value) {
        comma();
        format::append_json_string(out_, value);
    }
    void number(double value) {
        comma();
        fmt::format_to(std::back_inserter(out_), "{}", value);
    }
    void flag(bool value) {
        comma();
        out_ += value ? "true" : "false";
    }
    void text(std::string_view name, std::string_view value) {
        key(name);
        text(value);
    }
    void number(std::string_view name, double value) {
        key(name);
        number(value);
    }

private:
    void comma() {
        if (!first_) {
            out_ += ", ";
        }
        first_ = false;
    }
    std::string out_;
    bool first_ = true;
};

template <typename Range, typename One>
void list(Writer& to, std::string_view name, const Range& range, const One& one) {
    to.key(name);
    to.open('[');
    for (const auto& item : range) {
        one(item);
    }
    to.close(']');
}

void put(Writer& to, const Input& input) {
    to.open('{');
    to.text("name", input.name);
    to.number("value", input.value);
    to.text("unit", input.unit);
    to.text("source", input.source);
    to.close('}');
}

void put(Writer& to, const Figure& figure) {
    to.open('{');
    to.text("name", figure.name);
    to.text("label", figure.label);
    to.number("value", figure.value);
    to.text("unit", figure.unit);
    to.text("formula", figure.formula);
    list(to, "inputs", figure.inputs, [&](const Input& input) { put(to, input); });
    to.close('}');
}

void put(Writer& to, const Column& column) {
    to.open('{');
    to.text("name", column.name);
    to.text("label", column.label);
    to.text("unit", column.unit);
    to.key("wide");
    to.flag(column.wide);
    to.close('}');
}

void put(Writer& to, const Table& table) {
    to.open('{');
    to.text("name", table.name);
    to.text("title", table.title);
    list(to, "columns", table.columns, [&](const Column& column) { put(to, column); });
    list(to, "rows", table.rows, [&](const std::vector<Cell>& row) {
        to.open('[');
        for (const Cell& cell : row) {
            if (const auto* number = std::get_if<double>(&cell)) {
                to.number(*number);
            } else {
                to.text(std::get<std::string>(cell));
            }
        }
        to.close(']');
    });
    to.close('}');
}

void put(Writer& to, const Series& series) {
    to.open('{');
    to.text("name", series.name);
    to.text("label", series.label);
    to.text("x_label", series.x_label);
    to.text("x_unit", series.x_unit);
    to.text("y_label", series.y_label);
    to.text("y_unit", series.y_unit);
    list(to, "x", series.x, [&](double value) { to.number(value); });
    list(to, "y", series.y, [&](double value) { to.number(value); });
    to.close('}');
}

[[noreturn]] void unexpected(std::string_view name, const JsonTree& came,
                             std::string_view expected) {
    refuse({},
           fmt::format("the answer: {}: got {}; expected {}", name, came.kind_name(), expected));
}

const JsonTree& member(const JsonTree& tree, std::string_view name) {
    if (tree.kind != JsonTree::Kind::kObject) {
        unexpected(name, tree, "an object around it");
    }
    const JsonTree* const found = tree.find(name);
    if (found == nullptr) {
        refuse({}, fmt::format("the answer has no '{}', which every answer has", name));
    }
    return *found;
}

std::string text(const JsonTree& tree, std::string_view name) {
    const JsonTree& found = member(tree, name);
    if (found.kind != JsonTree::Kind::kString) {
        unexpected(name, found, "a text");
    }
    return found.text;
}

double number_of(std::string_view name, const JsonTree& tree) {
    if (tree.kind != JsonTree::Kind::kNumber || !std::isfinite(tree.number)) {
        unexpected(name, tree, "a finite number");
    }
    return tree.number;
}

double number(const JsonTree& tree, std::string_view name) {
    return number_of(name, member(tree, name));
}

const std::vector<JsonTree>& items(const JsonTree& tree, std::string_view name) {
    const JsonTree& found = member(tree, name);
    if (found.kind != JsonTree::Kind::kArray) {
        unexpected(name, found, "a list");
    }
    return found.items;
}

std::vector<double> numbers(const JsonTree& tree, std::string_view name) {
    std::vector<double> out;
    for (const JsonTree& one : items(tree, name)) {
        out.push_back(number_of(name, one));
    }
    return out;
}

Figure figure_of(const JsonTree& tree) {
    Figure out{text(tree, "name"), text(tree, "label"),   number(tree, "value"),
               text(tree, "unit"), text(tree, "formula"), {}};
    for (const JsonTree& one : items(tree, "inputs")) {
        out.inputs.push_back(
            {text(one, "name"), number(one, "value"), text(one, "unit"), text(one, "source")});
    }
    return out;
}

Table table_of(const JsonTree& tree) {
    Table out{text(tree, "name"), text(tree, "title"), {}, {}};
    for (const JsonTree& one : items(tree, "columns")) {
        out.columns.push_back({text(one, "name"), text(one, "label"), text(one, "unit"),
                               member(one, "wide").number != 0});
    }
    for (const JsonTree& one : items(tree, "rows")) {
        if (one.kind != JsonTree::Kind::kArray || one.items.size() != out.columns.size()) {
            unexpected("rows", one, "lists as long as the columns");
        }
        std::vector<Cell>& row = out.rows.emplace_back();
        for (const JsonTree& cell : one.items) {
            if (cell.kind == JsonTree::Kind::kString) {
                row.emplace_back(cell.text);
            } else {
                row.emplace_back(number_of("rows", cell));
            }
        }
    }
    return out;
}

Series series_of(const JsonTree& tree) {
    Series out{text(tree, "name"),   text(tree, "label"),   text(tree, "x_label"),
               text(tree, "x_unit"), text(tree, "y_label"), text(tree, "y_unit"),
               numbers(tree, "x"),   numbers(tree, "y")};
    if (out.x.size() != out.y.size()) {
        refuse({}, fmt::format("the answer: series '{}': {} x and {} y; expected as many",
                               format::escaped(out.name), out.x.size(), out.y.size()));
    }
    return out;
}

}  // namespace

std::string json_of(const Answer& answer) {
    Writer to;
    to.open('{');
    to.text("verb", answer.verb);
    to.text("title", answer.title);
    list(to, "figures", answer.figures, [&](const Figure& one) { put(to, one); });
    list(to, "tables", answer.tables, [&](const Table& one) { put(to, one); });
    list(to, "series", answer.series, [&](const Series& one) { put(to, one); });
    list(to, "notes", answer.notes, [&](const std::string& one) { to.text(one); });
    to.close('}');
    return to.take();
}

Answer answer_of_json(std::string_view json) {
    const JsonTree tree = json_tree(json, kReading);
    Answer out;
    out.verb = text(tree, "verb");
    out.title = text(tree, "title");
    for (const JsonTree& one : items(tree, "figures")) {
        out.figures.push_back(figure_of(one));
    }
    for (const JsonTree& one : items(tree, "tables")) {
        out.tables.push_back(table_of(one));
    }
    for (const JsonTree& one : items(tree, "series")) {
        out.series.push_back(series_of(one));
    }
    for (const JsonTree& one : items(tree, "notes")) {
        if (one.kind != JsonTree::Kind::kString) {
            unexpected("notes", one, "texts");
        }
        out.notes.push_back(one.text);
    }
    return out;
}

}  // namespace penstock::plan
