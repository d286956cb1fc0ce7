// SPDX-License-Identifier: Apache-2.0
// What python/penstock/plan stands on. Answers cross as JSON, with every digit of their numbers.
#include "arguments.hpp"
#include "bind.hpp"
#include "progress.hpp"

#include <penstock/plan.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

// `options`: pairs of a name and a text.
std::string plan_ask(nb::handle verb, nb::handle options) {
    std::vector<plan::Word> words;
    for (auto& [name, word] : word_pairs_of(options, "options")) {
        words.push_back({std::move(name), std::move(word)});
    }
    return plan::json_of(plan::ask(word_of(verb, "verb"), words));
}

std::string plan_show(nb::handle answer, nb::handle how, std::size_t columns) {
    const plan::Answer read = plan::answer_of_json(word_of(answer, "answer"));
    const std::string as = word_of(how, "how");
    if (as == "explain") {
        return plan::explain(read, columns);
    }
    return as == "markdown" ? plan::markdown_of(read) : plan::text_of(read, columns);
}

// A path in it may be no UTF-8.
PyObject* text_object(const std::string& text) {
    return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()),
                                "surrogateescape");
}

// As plan_ask(); `paths`: bytes; `size`: 0 for the default; `progress`: None, or called with
// (doing, step, steps, seconds left, bytes a second).
std::string plan_measure(nb::handle verb, nb::handle options, nb::handle paths, double seconds,
                         std::uint64_t size, nb::handle progress) {
    std::vector<plan::Word> words;
    for (auto& [name, word] : word_pairs_of(options, "options")) {
        words.push_back({std::move(name), std::move(word)});
    }
    plan::MeasureOptions measure;
    for (const nb::handle path : nb::borrow<nb::list>(paths)) {
        measure.paths.emplace_back(PyBytes_AsString(path.ptr()),
                                   static_cast<std::size_t>(PyBytes_Size(path.ptr())));
    }
    measure.seconds = seconds;
    if (size != 0) {
        measure.size = static_cast<double>(size);
    }
    const std::string name = word_of(verb, "verb");
    std::string answer;
    run_with_reports([&](const auto& report) {
        measure.progress = [&](const plan::MeasureStep& step) {
            return report([&] {
                return progress.is_none()
                           ? Py_NewRef(Py_None)
                           : PyObject_CallFunction(progress.ptr(), "Nnndd", text_object(step.doing),
                                                   static_cast<Py_ssize_t>(step.step),
                                                   static_cast<Py_ssize_t>(step.steps),
                                                   step.seconds_left, step.bytes_per_second);
            });
        };
        answer = plan::json_of(plan::ask_measured(name, words, measure));
    });
    return answer;
}

std::string plan_shown(double value, nb::handle unit) {
    return plan::shown(value, word_of(unit, "unit"));
}

nb::list plan_presets() {
    nb::list out;
    for (const plan::TrainPreset& row : plan::train_presets()) {
        out.append(nb::make_tuple(nb::str(row.preset.c_str()), nb::str(row.model.c_str()),
                                  nb::str(row.accelerator.c_str()), row.samples_per_second,
                                  row.bytes_per_sample, row.batch, row.utilisation,
                                  row.samples_per_file, nb::str(row.source.c_str()),
                                  nb::str(row.bytes_source.c_str())));
    }
    return out;
}

// (name, parameters, layers, tensors, assumed, source, cache), a tensor as (name, rows, columns,
// count), the cache as (elements, layers, windowed layers, window) or None.
nb::tuple plan_model(nb::handle name, nb::handle config) {
    const std::string text = word_of(config, "config");
    const plan::ModelParameters model =
        text.empty() ? plan::model_named(word_of(name, "model")) : plan::read_model(text);
    nb::list tensors;
    for (const plan::TensorGroup& group : model.groups) {
        tensors.append(nb::make_tuple(nb::str(group.name.c_str()), group.rows, group.columns,
                                      group.tensors()));
    }
    nb::list assumed;
    for (const std::string& line : model.assumed) {
        assumed.append(nb::str(line.data(), line.size()));
    }
    nb::object cache = nb::none();
    if (model.cache) {
        cache = nb::make_tuple(model.cache->elements, model.cache->layers,
                               model.cache->windowed_layers, model.cache->window);
    }
    return nb::make_tuple(nb::str(model.name.c_str()), model.parameters, model.layers, tensors,
                          assumed, nb::str(model.source.c_str()), cache);
}

nb::tuple plan_models() {
    nb::list names;
    for (const std::string& name : plan::model_names()) {
        names.append(nb::str(name.c_str()));
    }
    nb::list types;
    for (const std::string& type : plan::model_types()) {
        types.append(nb::str(type.c_str()));
    }
    nb::list rows;
    for (const plan::OptimizerBytes& row : plan::optimizers()) {
        rows.append(nb::make_tuple(nb::str(row.name.c_str()), row.weights, row.master, row.states,
                                   nb::str(row.formula.c_str()), nb::str(row.source.c_str())));
    }
    return nb::make_tuple(names, types, rows);
}

}  // namespace

void bind_plan(nb::module_& m) {
    m.def("plan_ask", plan_ask, nb::arg("verb"), nb::arg("options"),
          nb::sig("def plan_ask(verb: str, options: list[tuple[str, str]]) -> str"),
          "Private; the functions of penstock.plan are public.");
    m.def("plan_measure", plan_measure, nb::arg("verb"), nb::arg("options"), nb::arg("paths"),
          nb::arg("seconds"), nb::arg("size"), nb::arg("progress").none(),
          nb::sig("def plan_measure(verb: str, options: list[tuple[str, str]], paths: list[bytes], "
                  "seconds: float, size: int, progress: typing.Any) -> str"),
          "Private; penstock.plan.measure() is public.");
    m.def("plan_show", plan_show, nb::arg("answer"), nb::arg("how"), nb::arg("columns"),
          nb::sig("def plan_show(answer: str, how: str, columns: int) -> str"),
          "Private; the methods of penstock.plan.Answer are public.");
    m.def("plan_shown", plan_shown, nb::arg("value"), nb::arg("unit"),
          nb::sig("def plan_shown(value: float, unit: str) -> str"),
          "Private; a number with its unit, as answers show it.");
    m.def("plan_presets", plan_presets,
          nb::sig("def plan_presets() -> list[tuple[typing.Any, ...]]"),
          "Private; penstock.plan.presets() is public.");
    m.def("plan_model", plan_model, nb::arg("name"), nb::arg("config"),
          nb::sig("def plan_model(name: str, config: str) -> tuple[typing.Any, ...]"),
          "Private; penstock.plan.model() is public.");
    m.def("plan_models", plan_models,
          nb::sig("def plan_models() -> tuple[list[str], list[str], list[tuple[typing.Any, ...]]]"),
          "Private; penstock.plan.models() and optimizers() are public.");
}

}  // namespace penstock::python
