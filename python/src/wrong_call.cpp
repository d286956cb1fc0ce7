// SPDX-License-Identifier: Apache-2.0
// Calls with arguments that the function does not have. nanobind answers with the whole signature
// and all types, over several lines; here it becomes one sentence: which argument, and what may be
// meant. nanobind has no hook for that, so the linker leads its PyErr_SetString() here
// (CMakeLists.txt), and a text that is not understood goes through as it is.
#include "base/text/near.hpp"
#include "names.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

constexpr std::string_view kMark =
    "(): incompatible function arguments. The following argument types are supported:\n    1. ";
constexpr std::string_view kCame = "\n\nInvoked with types: ";
constexpr std::string_view kKeywords = "kwargs = { ";
constexpr std::size_t kUsageMax = 200;

// Cut at the commas that stand in no bracket and no string.
std::vector<std::string_view> pieces_of(std::string_view list) {
    std::vector<std::string_view> out;
    int depth = 0;
    bool quoted = false;
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= list.size(); ++i) {
        const char c = i < list.size() ? list[i] : ',';
        quoted = quoted != (c == '\'');
        depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
        depth -= c == ')' || c == ']' || c == '}' ? 1 : 0;
        if (i == list.size() || (c == ',' && depth == 0 && !quoted)) {
            const std::size_t first = std::min(list.find_first_not_of(' ', begin), i);
            if (first < i) {
                out.push_back(list.substr(first, i - first));
            }
            begin = i + 1;
        }
    }
    return out;
}

struct Parameter {
    std::string_view name;
    std::string_view type;
    std::string_view value;  ///< by default; empty: it has to be given
    bool by_name = false;    ///< only
};

struct Call {
    std::string function;
    std::vector<Parameter> parameters;
    std::vector<std::string_view> types;  ///< of what came by position
    std::vector<std::string_view> names;  ///< of what came by name
    std::vector<std::string_view> types_by_name;
};

Parameter parameter_of(std::string_view text, bool by_name) {
    Parameter out;
    out.by_name = by_name;
    const std::size_t equals = text.find(" = ");
    if (equals != std::string_view::npos) {
        out.value = text.substr(equals + 3);
        text = text.substr(0, equals);
    }
    const std::size_t colon = text.find(": ");
    out.name = text.substr(0, colon);
    out.type = colon == std::string_view::npos ? "" : text.substr(colon + 2);
    return out;
}

// "NAME(a: int, b: str = 'x') -> int"
std::optional<std::vector<Parameter>> parameters_of(std::string_view signature) {
    const std::size_t open = signature.find('(');
    const std::size_t close = signature.rfind(") ->");
    if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
        return std::nullopt;
    }
    std::vector<Parameter> out;
    bool by_name = false;
    for (const std::string_view piece : pieces_of(signature.substr(open + 1, close - open - 1))) {
        if (piece == "*") {
            by_name = true;
        } else if (piece.starts_with('*')) {
            return std::nullopt;  // it takes anything
        } else if (piece != "/") {
            out.push_back(parameter_of(piece, by_name));
        }
    }
    return out;
}

std::optional<Call> call_of(std::string_view text) {
    const std::size_t mark = text.find(kMark);
    const std::size_t came = text.find(kCame);
    if (mark == std::string_view::npos || came == std::string_view::npos) {
        return std::nullopt;
    }
    const std::size_t begin = mark + kMark.size();
    const std::string_view signature = text.substr(begin, came - begin);
    if (signature.find("\n    2. ") != std::string_view::npos) {
        return std::nullopt;  // which one was meant nobody knows
    }
    auto parameters = parameters_of(signature);
    if (!parameters) {
        return std::nullopt;
    }
    Call call;
    call.function = text.substr(0, mark);
    call.parameters = std::move(*parameters);
    for (std::string_view piece : pieces_of(text.substr(came + kCame.size()))) {
        if (!piece.starts_with(kKeywords)) {
            call.types.push_back(piece);
            continue;
        }
        piece = piece.substr(kKeywords.size(), piece.size() - kKeywords.size() - 2);
        for (const std::string_view keyword : pieces_of(piece)) {
            const Parameter one = parameter_of(keyword, true);
            call.names.push_back(one.name);
            call.types_by_name.push_back(one.type);
        }
    }
    if (!call.parameters.empty() && call.parameters[0].name == "self" && !call.types.empty()) {
        const std::string_view self = call.types[0];
        if (call.function == "__init__") {
            call.function = self.substr(self.rfind('.') + 1);
        }
        call.parameters.erase(call.parameters.begin());
        call.types.erase(call.types.begin());
    }
    return call;
}

std::string usage(const Call& call) {
    std::string out;
    bool by_name = false;
    for (const Parameter& p : call.parameters) {
        out += out.empty() ? "" : ", ";
        out += p.by_name && !by_name ? "*, " : "";
        by_name = p.by_name;
        out += p.name;
        out += p.value.empty() ? "" : "=" + std::string(p.value);
        if (out.size() > kUsageMax) {
            out += ", ...";
            break;
        }
    }
    return call.function + "(" + out + ")";
}

std::string unknown(const Call& call, std::string_view name) {
    std::vector<std::string_view> names;
    for (const Parameter& p : call.parameters) {
        names.push_back(p.name);
    }
    const std::string_view near = base::nearest(name, names);
    return "there is no argument " + quoted(std::string(name)) + "; " +
           (near.empty() ? "expected " + usage(call) : "did you mean '" + std::string(near) + "'?");
}

std::string what_is_wrong(const Call& call) {
    const auto is = [&](std::string_view name) {
        return [name](const Parameter& p) { return p.name == name; };
    };
    for (const std::string_view name : call.names) {
        if (std::none_of(call.parameters.begin(), call.parameters.end(), is(name))) {
            return unknown(call, name);
        }
    }
    const auto by_position =
        static_cast<std::size_t>(std::count_if(call.parameters.begin(), call.parameters.end(),
                                               [](const Parameter& p) { return !p.by_name; }));
    if (call.types.size() > by_position) {
        const std::string came = std::to_string(call.types.size());
        return call.parameters.empty()
                   ? "it takes no arguments, and " + came + " came"
                   : "it takes " + std::to_string(by_position) + " positional arguments, and " +
                         came + " came; expected " + usage(call);
    }
    for (std::size_t i = 0; i < call.parameters.size(); ++i) {
        const Parameter& p = call.parameters[i];
        const bool named =
            std::find(call.names.begin(), call.names.end(), p.name) != call.names.end();
        const std::string name = quoted(std::string(p.name));
        if (named && i < call.types.size()) {
            return "the argument " + name + " came twice, by position and by name";
        }
        if (!named && i >= call.types.size() && p.value.empty()) {
            return "the argument " + name + " is missing; expected " + usage(call);
        }
    }
    std::string out = "the types do not fit: got ";
    std::string expected;
    for (std::size_t i = 0; i < call.parameters.size(); ++i) {
        const Parameter& p = call.parameters[i];
        const auto named = std::find(call.names.begin(), call.names.end(), p.name);
        if (i >= call.types.size() && named == call.names.end()) {
            continue;
        }
        const std::string_view type =
            i < call.types.size()
                ? call.types[i]
                : call.types_by_name[static_cast<std::size_t>(named - call.names.begin())];
        const std::string begin = (expected.empty() ? "" : ", ") + std::string(p.name) + ": ";
        out += begin + std::string(type);
        expected += begin + std::string(p.type);
    }
    return out + "; expected " + expected;
}

}  // namespace

// The message that replaces nanobind's text.
static std::string plain(std::string_view text) {
    const std::optional<Call> call = call_of(text);
    return call ? call->function + "(): " + what_is_wrong(*call) : std::string(text);
}

}  // namespace penstock::python

// The names are the linker's (--wrap).
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {
void __real_PyErr_SetString(PyObject* type, const char* text);
void __wrap_PyErr_SetString(PyObject* type, const char* text);

void __wrap_PyErr_SetString(PyObject* type, const char* text) {
    if (type != PyExc_TypeError ||
        std::string_view(text).find(penstock::python::kMark) == std::string_view::npos) {
        __real_PyErr_SetString(type, text);
        return;
    }
    std::string said = text;
    try {
        said = penstock::python::plain(text);
    } catch (const std::exception&) {  // no memory: then nanobind's
    }
    __real_PyErr_SetString(type, said.c_str());
}
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
