// SPDX-License-Identifier: Apache-2.0
#include "base/text/near.hpp"
#include "format/fault.hpp"
#include "plan/amount.hpp"
#include "plan/derive.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace penstock::plan {

const Figure& Answer::at(std::string_view name) const {
    std::vector<std::string_view> names;
    for (const Figure& figure : figures) {
        if (figure.name == name) {
            return figure;
        }
        names.emplace_back(figure.name);
    }
    const std::string_view near = base::nearest(name, names);
    refuse(verb, fmt::format("there is no figure {}{}", format::shown(name),
                             near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

const Figure& add_figure(Answer& answer, Figure figure) {
    if (!std::isfinite(figure.value)) {
        std::string inputs;
        for (const Input& input : figure.inputs) {
            inputs += fmt::format("{}{} = {}", inputs.empty() ? "" : ", ", input.name, input.value);
        }
        refuse(answer.verb, fmt::format("{} is out of range with {}; check the units of these",
                                        figure.name, inputs));
    }
    answer.figures.push_back(std::move(figure));
    return answer.figures.back();
}

Input input_of(const Answer& answer, std::string_view figure) {
    const Figure& found = answer.at(figure);
    return {found.name, found.value, found.unit, std::string(kComputed)};
}

}  // namespace penstock::plan
