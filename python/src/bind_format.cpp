// SPDX-License-Identifier: Apache-2.0
// Types, names and layouts for penstock/_state/load.py. Private: what users see is load().
#include "arguments.hpp"
#include "bind.hpp"
#include "file_object.hpp"
#include "fill_targets.hpp"
#include "format/safetensors.hpp"
#include "format/torch_types.hpp"
#include "names.hpp"
#include "source_object.hpp"
#include "state/selection.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::python {

namespace {

std::uint64_t tensor_bytes(nb::handle type, nb::handle shape) {
    const auto known = format::safetensors::type_named(word_of(type, "type"));
    const auto bytes =
        known ? format::safetensors::bytes_of(*known, counts_of(shape, "shape", "elements"))
              : std::nullopt;
    if (!bytes) {
        raise_value("load: no tensor has such a type and shape");
    }
    return *bytes;
}

// (number among the names, number of what it was chosen by) each.
nb::list select(const nb::list& names, const nb::list& wanted, nb::handle path) {
    const std::vector<std::string> texts = texts_of(names);
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    Choice choice(wanted, true);
    nb::list out;
    try {
        const std::vector<std::size_t> chosen = choice.choose(views);
        for (std::size_t i = 0; i < chosen.size(); ++i) {
            out.append(nb::make_tuple(chosen[i], choice.wanted(i)));
        }
    } catch (const Error&) {
        choice.raise_lacking(path_bytes(path, "path", ""));
        throw;
    }
    return out;
}

}  // namespace

void bind_format(nb::module_& parent) {
    nb::module_ m = parent.def_submodule("_format", "Formats of checkpoints; private.");
    bind_saves(m);
    bind_sources(m);
    m.def(
        "torch_types",
        [](bool all) {
            nb::list out;
            for (const auto& row : format::kTorchTypes) {
                if ((all || row.in_safetensors) && row.torch[0] != 0 && row.bits % 8 == 0) {
                    out.append(nb::make_tuple(std::string(row.name), row.torch));
                }
            }
            return out;
        },
        nb::arg("all") = false,
        "(our name, name in torch) of those that safetensors has, or of all; whose elements are "
        "whole bytes");
    m.def("tensor_bytes", tensor_bytes, nb::arg("type"), nb::arg("shape"));
    m.def("select", select, nb::arg("names"), nb::arg("wanted"), nb::arg("path"));
    m.def(
        "lacking",
        [](nb::handle wanted, const nb::list& names) {
            const std::vector<std::string> texts = texts_of(names);
            const std::vector<std::string_view> views(texts.begin(), texts.end());
            return state::lacking(text(wanted), views);
        },
        nb::arg("wanted"), nb::arg("names"));
    m.def("stretch", stretch_of, nb::arg("view"));
}

}  // namespace penstock::python
