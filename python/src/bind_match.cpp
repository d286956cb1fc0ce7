// SPDX-License-Identifier: Apache-2.0
// Compares names and types of a file with those of a model: for _state/load_into.py,
// _state/into.py and weights/_matching.py. Private.
#include "arguments.hpp"
#include "bind.hpp"
#include "fill_targets.hpp"
#include "names.hpp"
#include "state/match/comparison.hpp"
#include "state/match/prefix_hint.hpp"
#include "state/match/scale_owners.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

// `like` has dtype and shape: what describes a tensor, or a tensor of torch.
state::DescribedTensor described(nb::handle name, nb::handle like) {
    static const Name dtype("dtype");
    static const Name shape("shape");
    constexpr std::string_view kTorch = "torch.";
    state::DescribedTensor out{text(name), text(get(like, dtype)), {}};
    if (out.dtype.starts_with(kTorch)) {
        out.dtype.erase(0, kTorch.size());
    }
    for (const nb::handle extent : nb::iter(get(like, shape))) {
        out.shape.push_back(number(nb::borrow(extent)));
    }
    return out;
}

std::vector<state::DescribedTensor> all_described(const nb::list& names, const nb::list& like) {
    std::vector<state::DescribedTensor> out;
    out.reserve(nb::len(names));
    for (std::size_t i = 0; i < nb::len(names); ++i) {
        out.push_back(described(names[i], like[i]));
    }
    return out;
}

// Identifies the memory of a tensor of torch. One without elements is never tied.
std::string memory_text(nb::handle tensor, const state::DescribedTensor& its) {
    static const Name data_ptr("data_ptr");
    static const Name stride("stride");
    const std::uint64_t address = number(call(tensor, data_ptr));
    std::string out =
        address == 0 ? "object " + std::to_string(reinterpret_cast<std::uintptr_t>(tensor.ptr()))
                     : std::to_string(address);
    out += its.dtype + text(call(tensor, stride));
    for (const std::uint64_t extent : its.shape) {
        out += ' ' + std::to_string(extent);
    }
    return out;
}

nb::list list_of(const std::vector<std::string>& names) {
    nb::list out;
    for (const std::string& name : names) {
        out.append(path_object(name));
    }
    return out;
}

// (missing, unexpected, problems, hint). state: {name: tensor}. under: "" or the name of the part.
nb::tuple compared(const nb::dict& state, const nb::list& names, const nb::list& rows,
                   nb::handle under, bool strict) {
    std::vector<state::ModelTensor> model;
    for (const auto& [name, tensor] : state) {
        state::DescribedTensor its = described(name, tensor);
        std::string memory = memory_text(tensor, its);
        model.push_back({std::move(its), std::move(memory)});
    }
    const state::Comparison found =
        state::compare_states(all_described(names, rows), model, text(under), strict);
    return nb::make_tuple(list_of(found.missing), list_of(found.unexpected),
                          list_of(found.problems), path_object(found.hint));
}

nb::list lost(const nb::list& names, const nb::list& like, const nb::list& taken) {
    nb::list out;
    for (const auto& [scale, owner] :
         state::lost_scales(all_described(names, like), texts_of(taken))) {
        out.append(nb::make_tuple(path_object(scale), path_object(owner)));
    }
    return out;
}

}  // namespace

void bind_match(nb::module_& parent) {
    nb::module_ m = parent.def_submodule("_match", "Names and types of a file and of a model.");
    m.def(
        "is_converted",
        [](nb::handle from, nb::handle to) { return state::is_converted(text(from), text(to)); },
        nb::arg("from_dtype"), nb::arg("to_dtype"));
    m.def("compared", compared, nb::arg("state"), nb::arg("names"), nb::arg("rows"),
          nb::arg("under"), nb::arg("strict"));
    m.def("lost_scales", lost, nb::arg("names"), nb::arg("like"), nb::arg("taken"));
    m.def(
        "quantized_as",
        [](const nb::list& names, const nb::list& like) {
            return path_object(state::quantized_as(all_described(names, like)));
        },
        nb::arg("names"), nb::arg("like"));
    m.def(
        "prefix_hint",
        [](nb::handle verb, const nb::list& missing, const nb::list& unexpected, nb::handle under) {
            return path_object(state::prefix_hint(text(verb), texts_of(missing),
                                                  texts_of(unexpected), text(under)));
        },
        nb::arg("verb"), nb::arg("missing"), nb::arg("unexpected"), nb::arg("under") = nb::str(""));
    m.def("sharing", sharing, nb::arg("tensors"));
}

}  // namespace penstock::python
