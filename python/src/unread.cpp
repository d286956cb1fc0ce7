// SPDX-License-Identifier: Apache-2.0
#include "unread.hpp"

#include "arguments.hpp"
#include "base/raise.hpp"
#include "bind.hpp"
#include "file_object.hpp"
#include "format/unread.hpp"
#include "names.hpp"

#include <penstock/error.hpp>

#include <fmt/format.h>

namespace penstock::python {

namespace {

struct UnreadObject {
    nb::object name, place, reason;
    nb::list rows;
};

int traverse_unread(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) {
        const auto& held = *nb::inst_ptr<UnreadObject>(self);
        Py_VISIT(held.rows.ptr());  // a tensor may have attributes that hold it
    }
    return 0;
}

int clear_unread(PyObject* self) {
    nb::inst_ptr<UnreadObject>(self)->rows = nb::list();
    return 0;
}

PyType_Slot* unread_slots() {
    static PyType_Slot all[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_unread)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear_unread)},
                                {0, nullptr}};
    return all;
}

std::string shown_unread(const UnreadObject& held) {
    const std::size_t count = nb::len(held.rows);
    const std::string name = text(held.name);
    return fmt::format("<penstock.Unread {}, {}{}>", name.empty() ? "object" : name,
                       text(held.place),
                       count == 0   ? ""
                       : count == 1 ? ", 1 tensor"
                                    : fmt::format(", {} tensors", count));
}

[[noreturn]] void refuse_use(nb::handle self) {
    throw Error(ErrorCode::kUnsupported, 0, "use", {}, kNoOffset, use_of_unread(self));
}

nb::object refused_use(nb::handle self, const nb::args& /*others*/, const nb::kwargs& /*named*/) {
    refuse_use(self);
}

// A name with an underscore is of a protocol, which it does not have.
nb::object attribute_of_unread(nb::handle self, nb::handle name) {
    const std::string word = word_of(name, "name");
    if (word.starts_with('_')) {
        throw nb::attribute_error(fmt::format("a penstock.Unread has no {}", word).c_str());
    }
    refuse_use(self);
}

nb::dict tensors_in_unread(const UnreadObject& held) {
    nb::dict out;
    for (const nb::handle row : held.rows) {
        out[checked(PyUnicode_Concat(held.place.ptr(), nb::object(row[1]).ptr()))] = row[2];
    }
    return out;
}

constexpr const char* kUses[] = {
    "__call__",     "__setattr__", "__delattr__",  "__len__",     "__iter__",   "__next__",
    "__contains__", "__getitem__", "__setitem__",  "__delitem__", "__bool__",   "__int__",
    "__float__",    "__complex__", "__index__",    "__fspath__",  "__eq__",     "__ne__",
    "__lt__",       "__le__",      "__gt__",       "__ge__",      "__hash__",   "__reduce_ex__",
    "__reduce__",   "__copy__",    "__deepcopy__", "__enter__",   "__exit__",   "__add__",
    "__radd__",     "__sub__",     "__rsub__",     "__mul__",     "__rmul__",   "__truediv__",
    "__rtruediv__", "__neg__",     "__array__",    "__bytes__",   "__dlpack__", "__dlpack_device__",
};

}  // namespace

nb::object unread_object(const format::Value& value, const std::string& place,
                         const nb::list& rows) {
    const auto unicode = [](const std::string& of) {
        return checked(
            PyUnicode_DecodeUTF8(of.data(), static_cast<Py_ssize_t>(of.size()), "surrogateescape"));
    };
    return nb::cast(UnreadObject{unicode(value.text), unicode(place), unicode(value.data), rows});
}

bool is_unread(nb::handle object) {
    return nb::isinstance<UnreadObject>(object);
}

std::string use_of_unread(nb::handle object) {
    const auto& held = *nb::inst_ptr<UnreadObject>(object);
    return fmt::format(
        "{} was not read, and {} is in its place: it has name, place, reason and tensors, and "
        "nothing else can be done with it; {}",
        text(held.place), shown_unread(held), text(held.reason));
}

bool keeps_unread(nb::handle unread) {
    const std::string word = word_of(unread, "unread");
    if (word != "raise" && word != "keep") {
        raise_value("load: unread: expected 'raise' or 'keep', got " + quoted(word));
    }
    return word == "keep";
}

void refuse_unread(const format::ValueTree& tree, nb::handle path) {
    const std::string why = format::why_not_whole(tree);
    if (!why.empty()) {
        base::raise(base::error(
            ErrorCode::kUnsupported, "load",
            why + "; load(f, unread=\"keep\") reads the rest, with a penstock.Unread in its place; "
                  "names= loads parts",
            path_bytes(path, "path", "")));
    }
}

void bind_unread(nb::module_& m) {
    nb::class_<UnreadObject> held(
        m, "Unread", nb::type_slots(unread_slots()), nb::is_final(),
        "An object of a `.pt` that load(unread=\"keep\") does not read, in its place: an "
        "argparse.Namespace, a module, a function. Any other use than the attributes below and "
        "repr() raises penstock.Unsupported. It cannot be called, pickled, copied, saved, "
        "compared, or be a key.");
    held.def_prop_ro(
            "name", [](const UnreadObject& h) { return h.name; }, nb::sig("def name(self) -> str"),
            "Of its class, or of the function that makes it (\"argparse.Namespace\"), according "
            "to the file. It is text: nothing is imported by it.")
        .def_prop_ro(
            "place", [](const UnreadObject& h) { return h.place; },
            nb::sig("def place(self) -> str"), "In the state: \"state['args']\".")
        .def_prop_ro(
            "reason", [](const UnreadObject& h) { return h.reason; },
            nb::sig("def reason(self) -> str"), "Why it is not read.")
        .def_prop_ro(
            "tensors", tensors_in_unread, nb::sig("def tensors(self) -> dict[str, typing.Any]"),
            "Those that it holds, by their places in the state "
            "(\"state['net']['_parameters']['weight']\"). A name without a dict around it, "
            "load(f, names=\"net._parameters.weight\"), loads one of them.")
        .def_prop_ro(
            "_rows", [](const UnreadObject& h) { return h.rows; },
            nb::sig("def _rows(self) -> list[tuple[str, str, typing.Any]]"))
        .def("__repr__", shown_unread, nb::sig("def __repr__(self) -> str"))
        .def("__getattr__", attribute_of_unread,
             nb::sig("def __getattr__(self, name: str) -> typing.NoReturn"));
    for (const char* const use : kUses) {
        const std::string sig =
            fmt::format("def {}(self, *args: object, **kwargs: object) -> typing.NoReturn", use);
        held.def(use, refused_use, nb::sig(sig.c_str()));
    }
}

}  // namespace penstock::python
