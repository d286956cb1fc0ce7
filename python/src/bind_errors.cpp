// SPDX-License-Identifier: Apache-2.0
// penstock::Error becomes what penstock/_base/errors.py makes of it: ValueError, MemoryError, or a
// penstock.Error.
#include "arguments.hpp"
#include "base/raise.hpp"
#include "base/remote_path.hpp"
#include "base/result.hpp"
#include "base/text/near.hpp"
#include "base/text/units.hpp"
#include "bind.hpp"
#include "errors.hpp"
#include "file_object.hpp"
#include "names.hpp"

#include <penstock/error.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace penstock::python {

// std::system_error appends the category's words to ours, which say more.
std::string message_of(const Error& error) {
    std::string text = error.what();
    const std::string tail = ": " + error.code().message();
    if (text.ends_with(tail)) {
        text.resize(text.size() - tail.size());
    }
    return text;
}

namespace {

nb::object made_of(const Error& error) {
    const nb::object path = error.path().empty() ? nb::none() : path_object(error.path());
    const nb::object offset =
        error.offset() == kNoOffset ? nb::none() : nb::object(nb::int_(error.offset()));
    return nb::module_::import_("penstock._base.errors")
        .attr("from_core")(static_cast<int>(error.reason()), path_object(message_of(error)),
                           error.system_errno(), error.operation(), path, offset);
}

nb::object made_of(const base::Error& error) {
    return made_of(Error(error.code, error.system_errno, error.operation, error.path, error.offset,
                         error.describe()));
}

}  // namespace

// Makes the exception in Python, where a signal handler may run: its exception, such as
// KeyboardInterrupt, takes precedence.
void set_python_error(const Error& error) {
    try {
        const nb::object made = made_of(error);
        PyErr_SetObject(made.type().ptr(), made.ptr());
    } catch (nb::python_error& raised) {
        raised.restore();
    }
}

std::optional<Error> about_a_file(const nb::python_error& raised) {
    const nb::object value = nb::borrow(raised.value());
    if (!nb::isinstance(value, nb::module_::import_("penstock._base.errors").attr("Error"))) {
        return std::nullopt;
    }
    const auto bytes_of = [&](const char* name) {
        const nb::object words = value.attr(name);
        return words.is_none() ? std::string() : path_bytes(words, name, "");
    };
    const nb::object number = value.attr("errno");
    const nb::object offset = value.attr("offset");
    const Error error(
        static_cast<ErrorCode>(nb::cast<int>(value.attr("_code"))),
        number.is_none() ? 0 : nb::cast<int>(number), bytes_of("operation"), bytes_of("path"),
        offset.is_none() ? kNoOffset : nb::cast<std::uint64_t>(offset), bytes_of("message"));
    return error.is_about_the_file() ? std::optional(error) : std::nullopt;
}

namespace {

void translate(const std::exception_ptr& thrown, void* /*payload*/) {
    try {
        std::rethrow_exception(thrown);
    } catch (const Error& error) {
        set_python_error(error);
    }
}

}  // namespace

void bind_errors(nb::module_& m) {
    nb::register_exception_translator(translate);
    m.def(
        "system_error",
        [](int number, nb::handle operation, nb::handle path) {
            return made_of(base::system_error(number, word_of(operation, "operation"),
                                              path_bytes(path, "path", "")));
        },
        nb::arg("errno"), nb::arg("operation"), nb::arg("path"),
        nb::sig("def system_error(errno: int, operation: str, path: str) -> BaseException"),
        "The exception that the compiled part would raise; private.");
    m.def(
        "is_remote", [](nb::handle path) { return base::is_remote(path_bytes(path, "path", "")); },
        nb::arg("path"), nb::sig("def is_remote(path: str) -> bool"),
        "Whether it is a URL, which FileSystem::any() refuses; private.");
    m.def(
        "refused_thread",
        [] {
            const auto again = std::make_error_code(std::errc::resource_unavailable_try_again);
            return made_of(base::refused_thread(std::system_error(again), "start thread"));
        },
        nb::sig("def refused_thread() -> BaseException"),
        "The exception for a thread that was not started; private.");
    m.def(
        "is_about_the_file",
        [](int code, int number) {
            return Error(static_cast<ErrorCode>(code), number, {}, {}, kNoOffset, {})
                .is_about_the_file();
        },
        nb::arg("code"), nb::arg("errno"),
        nb::sig("def is_about_the_file(code: int, errno: int) -> bool"),
        "penstock::Error::is_about_the_file(); private.");
    m.def(
        "parse_bytes",
        [](nb::handle word, nb::handle argument) {
            return amount_in(word, text(argument), base::parse_bytes);
        },
        nb::arg("word"), nb::arg("argument") = "",
        nb::sig("def parse_bytes(word: str, argument: str = '') -> int"),
        "Bytes of a size in words, '1.5GiB', by the one rule of base/text/units.hpp; private.");
    m.def(
        "parse_rate",
        [](nb::handle word, nb::handle argument) {
            return amount_in(word, text(argument), base::parse_rate);
        },
        nb::arg("word"), nb::arg("argument") = "",
        nb::sig("def parse_rate(word: str, argument: str = '') -> float"),
        "Bytes a second of a rate in words, '100Gbit/s'; private.");
    m.def(
        "parse_seconds",
        [](nb::handle word, nb::handle argument) {
            return amount_in(word, text(argument), base::parse_seconds);
        },
        nb::arg("word"), nb::arg("argument") = "",
        nb::sig("def parse_seconds(word: str, argument: str = '') -> float"),
        "Seconds of a time in words, '5min'; private.");
    m.def(
        "nearest",
        [](nb::handle word, const nb::list& names) {
            const std::vector<std::string> texts = texts_of(names);
            const std::vector<std::string_view> views(texts.begin(), texts.end());
            return std::string(base::nearest(text(word), views));
        },
        nb::arg("word"), nb::arg("names"),
        nb::sig("def nearest(word: str, names: list[str]) -> str"),
        "The nearest name, or nothing; private.");
}

void warn_of(const std::string& text) {
    if (!text.empty()) {
        nb::module_::import_("penstock._base.log").attr("warn")(path_object(text));
    }
}

}  // namespace penstock::python
