// SPDX-License-Identifier: Apache-2.0
#include "plan/models/model_table.hpp"

#include "plan/derive.hpp"

#include <fmt/format.h>

#include <utility>

namespace penstock::plan {

void add_state(Answer& answer, const ModelParameters& model, const StateBytes& state,
               const std::string& name, const std::string& label) {
    const auto parameters = static_cast<double>(model.parameters);
    add_figure(answer,
               {"parameters",
                "parameters",
                parameters,
                "",
                model.groups.empty() ? "model" : "[sum over tensors: rows * columns * count]",
                {{"model", parameters, "", model.source}}});
    const Input count = input_of(answer, "parameters");
    if (state.by_shape) {
        add_figure(answer, {name, label, state.bytes, "B", state.formula, {count}});
        const Input bytes = input_of(answer, name);
        add_figure(answer, {"bytes_per_parameter",
                            "bytes a parameter",
                            state.per_parameter,
                            "B",
                            name + " / parameters",
                            {bytes, count}});
        answer.notes.push_back(state.source + ".");
        return;
    }
    add_figure(answer, {name,
                        label,
                        state.bytes,
                        "B",
                        state.formula,
                        {count, {"bytes_per_parameter", state.per_parameter, "B", state.source}}});
}

void add_assumed(Answer& answer, const ModelParameters& model) {
    for (const std::string& line : model.assumed) {
        answer.notes.push_back("Assumed: " + line + ".");
    }
}

void add_tensors(Answer& answer, const ModelParameters& model) {
    if (model.groups.empty()) {
        answer.notes.push_back("Only the number of parameters is known of " + model.name +
                               ", so it has no table of tensors.");
        return;
    }
    Table table{"tensors",
                "The tensors of the model",
                {{"name", "tensor", ""},
                 {"rows", "rows", ""},
                 {"columns", "columns", ""},
                 {"count", "count", ""},
                 {"parameters", "parameters", ""}},
                {}};
    for (const TensorGroup& group : model.groups) {
        table.rows.push_back(
            row_of(group.name, static_cast<double>(group.rows), static_cast<double>(group.columns),
                   static_cast<double>(group.tensors()), static_cast<double>(group.parameters())));
    }
    answer.tables.push_back(std::move(table));
}

}  // namespace penstock::plan
